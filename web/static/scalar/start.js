// Shows openapi.json with Scalar's API reference. Everything that would need another server is switched off.
"use strict";

Scalar.createApiReference("#reference", {
  url: "openapi.json",
  // A proxy may serve the door below a path of its own.
  servers: [{ url: new URL(".", location.href).href.replace(/\/$/, "") }],
  agent: { disabled: true },
  mcp: { disabled: true },
  hideClientButton: true,
  showDeveloperTools: "never",
  telemetry: false,
  withDefaultFonts: false,
  authentication: { preferredSecurityScheme: "key" },
  defaultHttpClient: { targetKey: "shell", clientKey: "curl" },
  hiddenClients: ["c", "clojure", "csharp", "dart", "fsharp", "http", "java", "kotlin", "objc", "ocaml", "powershell", "r", "swift"],
  documentDownloadType: "json",
});

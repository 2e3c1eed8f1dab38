// Runs the checks of one client package for Node, and prints their results as JSON.
export const model = process.env.CHECKED_MODEL;
export const baseURL = process.env.OPENAI_BASE_URL;
export const apiKey = process.env.OPENAI_API_KEY;
export const cities = ["Paris", "Rome", "Oslo"];
export const parameters = {
  type: "object",
  properties: { city: { enum: cities } },
  required: ["city"],
  additionalProperties: false,
};
export const isCity = (text) => cities.includes(JSON.parse(text).city);

export async function run(checks) {
  const results = [];
  for (const [check, one] of Object.entries(checks)) {
    try {
      await one();
      results.push({ check, error: null });
    } catch (error) {
      results.push({ check, error: `${error} ${error?.responseBody ?? error?.cause ?? ""}`.slice(0, 600) });
    }
  }
  console.log(`\n${JSON.stringify(results)}`);
  process.exit(0);
}

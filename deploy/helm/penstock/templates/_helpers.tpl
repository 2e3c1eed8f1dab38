{{/* Parts that several templates share. */}}

{{- define "penstock.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "penstock.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* Settings of all processes. The pool's and the program's own settings are added to those of `settings`. */}}
{{- define "penstock.environ" -}}
- {name: REDIS_URL_FILE, value: /run/secrets/penstock/redis-url}
- {name: PENSTOCK_STATE_DIR, value: /var/lib/penstock}
- {name: PENSTOCK_DRAIN_GRACE_MS, value: {{ mul .root.Values.drainGraceSeconds 1000 | quote }}}
{{- range $name, $value := mergeOverwrite (deepCopy .root.Values.settings) .settings }}
{{- if has $name (list "REDIS_URL" "REDIS_URL_FILE" "PENSTOCK_STATE_DIR" "PENSTOCK_DRAIN_GRACE_MS") }}
{{- fail (printf "the setting %s is made from other values of the chart" $name) }}
{{- end }}
{{- /* Helm reads whole numbers as fractions and would write large ones with an exponent. */}}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $value = int64 $value }}{{ end }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end }}

{{/* Settings whose value is the path of a mounted secret, and variables as Kubernetes writes them. */}}
{{- define "penstock.more-environ" -}}
{{- range $name, $of := include "penstock.secret-files" . | fromYaml }}
- {name: {{ $name }}, value: /run/secrets/penstock-files/{{ $name }}/value}
{{- end }}
{{- with .of.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "penstock.secret-files" -}}
{{- mergeOverwrite (deepCopy .root.Values.secretFiles) (.of.secretFiles | default dict) | toYaml }}
{{- end }}

{{- define "penstock.secret-mounts" -}}
{{- range $name, $of := include "penstock.secret-files" . | fromYaml }}
- {name: {{ $name | lower | replace "_" "-" }}, mountPath: /run/secrets/penstock-files/{{ $name }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "penstock.secret-volumes" -}}
{{- range $name, $of := include "penstock.secret-files" . | fromYaml }}
- name: {{ $name | lower | replace "_" "-" }}
  secret:
    secretName: {{ $of.secret | quote }}
    items: [{key: {{ $of.entry | quote }}, path: value}]
{{- end }}
{{- end }}

{{- define "penstock.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "penstock.mounts" -}}
- {name: store, mountPath: /run/secrets/penstock, readOnly: true}
- {name: state, mountPath: /var/lib/penstock}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "penstock.volumes" -}}
- name: store
  secret:
    secretName: {{ .root.Values.store.secret | quote }}
    items: [{key: {{ .root.Values.store.entry | quote }}, path: redis-url}]
- {name: state, emptyDir: {}}
- {name: tmp, emptyDir: {}}
{{- end }}

{{- define "penstock.pod" -}}
automountServiceAccountToken: false
# Kubernetes would add variables named after the release, such as PENSTOCK_DOOR_PORT, which are no settings.
enableServiceLinks: false
securityContext: {{ toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .of.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

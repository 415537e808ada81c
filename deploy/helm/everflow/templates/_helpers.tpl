{{- define "everflow.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "everflow.selector" -}}
app.kubernetes.io/name: everflow
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "everflow.labels" -}}
{{ include "everflow.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "everflow.number" -}}
{{- if kindIs "float64" . -}}{{ . | int64 }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{- /* The Secret that holds tokens; empty where there is none. */ -}}
{{- define "everflow.tokenSecret" -}}
{{- if ne .Values.query.tokenSecretName "none" }}{{ .Values.query.tokenSecretName }}{{ end -}}
{{- end -}}

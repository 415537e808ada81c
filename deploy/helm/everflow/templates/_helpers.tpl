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

{{- /* Every number of a file of values is a float: a whole one is not printed with an exponent. */ -}}
{{- define "everflow.number" -}}
{{- if not (kindIs "float64" .) -}}{{ . }}{{- else if eq (floor .) . -}}{{ . | int64 }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{- /* How an autoscaler goes, whichever it is: down one pod at a time, as each takes copies of state with it. */ -}}
{{- define "everflow.behavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies: [{type: Pods, value: 4, periodSeconds: 60}]
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownStabilizationSeconds }}
  policies: [{type: Pods, value: 1, periodSeconds: 60}]
{{- end -}}

{{- /* The Secret that holds tokens; empty where there is none. */ -}}
{{- define "everflow.tokenSecret" -}}
{{- if ne .Values.query.tokenSecretName "none" }}{{ .Values.query.tokenSecretName }}{{ end -}}
{{- end -}}

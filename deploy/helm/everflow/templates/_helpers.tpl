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
  {{- with include "everflow.tolerance" . }}{{ . | nindent 2 }}{{- end }}
  policies: [{type: Pods, value: 4, periodSeconds: 60}]
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownStabilizationSeconds }}
  {{- with include "everflow.tolerance" . }}{{ . | nindent 2 }}{{- end }}
  policies: [{type: Pods, value: 1, periodSeconds: 60}]
{{- end -}}

{{- /* An autoscaler ignores a tenth, which is the step from ten pods to eleven; the figure is a number of pods already, and
steady. The API servers before 1.33 know no such field; where its gate is off they drop it. KEDA's own kind may not know it,
and a lag is no such figure. */ -}}
{{- define "everflow.tolerance" -}}
{{- if and (eq .Values.autoscaling.kind "hpa") (semverCompare ">=1.33-0" .Capabilities.KubeVersion.Version) -}}
tolerance: "0"
{{- end -}}
{{- end -}}

{{- /* What the chart sets itself, and by which value: given again in streams.config it would stand there twice, and win. */ -}}
{{- define "everflow.own" -}}
{{- $own := dict
    "application.id" "set streams.applicationId"
    "bootstrap.servers" "set streams.brokers"
    "processing.guarantee" "set streams.guarantee"
    "num.stream.threads" "set streams.threads"
    "state.dir" "leave it out, as it is the pod's volume (persistence)"
    "http.listen" "set http.port"
    "replication.factor" "set streams.replicationFactor"
-}}
{{- if .Values.staticMembership }}
{{- $_ := set $own "group.instance.id" "leave it out, as it is each pod's name; staticMembership=false is for a name of your own" }}
{{- end }}
{{- if .Values.query.enabled }}
{{- $_ := set $own "query.listen" "set query.port" }}
{{- $_ := set $own "application.server" "leave it out, as it is each pod's own address (query.enabled)" }}
{{- end }}
{{- if .Values.query.tokenSecretName }}
{{- $_ := set $own "query.token.file" "set query.tokenSecretName" }}
{{- end }}
{{- range $key, $_ := .Values.streams.topic }}
{{- $_ := set $own (printf "topic.%s" $key) (printf "it is in streams.topic, as %s" $key) }}
{{- end }}
{{- range $key, $_ := .Values.streams.config }}
{{- if hasKey $own $key }}
{{- fail (printf "streams.config has %s, which the chart sets itself: %s" $key (get $own $key)) }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The Secret that holds tokens; empty where there is none. */ -}}
{{- define "everflow.tokenSecret" -}}
{{- if ne .Values.query.tokenSecretName "none" }}{{ .Values.query.tokenSecretName }}{{ end -}}
{{- end -}}

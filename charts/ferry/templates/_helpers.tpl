{{- define "ferry.fullname" -}}
{{- if contains "ferry" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-ferry" (.Release.Name | trunc 34 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- /* Labels of all objects of the release. Pods of jobs have managed-by "ferry"; objects of the chart have not. */}}
{{- define "ferry.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "ferry.selector" . }}
{{- end }}

{{- define "ferry.selector" -}}
app.kubernetes.io/name: ferry
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* Cluster-wide, so its name has the namespace. */}}
{{- define "ferry.evictionWebhook" -}}
{{ .Release.Namespace }}-{{ include "ferry.fullname" . }}-evictions
{{- end }}

{{- define "ferry.operatorAccount" -}}
{{- .Values.operator.serviceAccount.name | default (ternary (printf "%s-operator" (include "ferry.fullname" .)) "default" .Values.operator.serviceAccount.create) }}
{{- end }}

{{- define "ferry.jobAccount" -}}
{{- .Values.jobs.serviceAccount.name | default (ternary (printf "%s-job" (include "ferry.fullname" .)) "default" .Values.jobs.serviceAccount.create) }}
{{- end }}

{{- /* The address of the registry without the password. */}}
{{- define "ferry.redisUrl" -}}
{{- if not .Values.redis.enabled }}{{ required "redis.url: give the address of your own Redis, or set redis.enabled" .Values.redis.url }}
{{- else if .Values.redis.clusterIP }}redis://{{ ternary (printf "[%s]" .Values.redis.clusterIP) .Values.redis.clusterIP (contains ":" .Values.redis.clusterIP) }}:6379/0
{{- else }}redis://{{ include "ferry.fullname" . }}-redis.{{ .Release.Namespace }}.svc:6379/0
{{- end }}
{{- end }}

{{- define "ferry.redisSecret" -}}
{{- .Values.redis.existingSecret | default (ternary (printf "%s-redis" (include "ferry.fullname" .)) "" .Values.redis.enabled) }}
{{- end }}

{{- define "ferry.redisSecretKey" -}}
{{- ternary .Values.redis.existingSecretKey "password" (not (empty .Values.redis.existingSecret)) }}
{{- end }}

{{- /* The Secret with the certificate of the release's Redis: ca.crt, tls.crt, tls.key. */}}
{{- define "ferry.redisTlsSecret" -}}
{{- if .Values.redis.enabled }}{{ .Values.redis.tlsSecret | default (printf "%s-redis-tls" (include "ferry.fullname" .)) }}{{ end }}
{{- end }}

{{- /* The same if the operator's pod creates it, with the names of Redis: SECRET=HOST,HOST. */}}
{{- define "ferry.redisCertificate" -}}
{{- if and .Values.redis.enabled (not .Values.redis.tlsSecret) -}}
{{ include "ferry.redisTlsSecret" . }}={{ include "ferry.fullname" . }}-redis.{{ .Release.Namespace }}.svc{{ with .Values.redis.clusterIP }},{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- /* The claim of Redis; without a claim the data ends with the pod. */}}
{{- define "ferry.redisClaim" -}}
{{- if .Values.redis.persistence.existingClaim }}{{ .Values.redis.persistence.existingClaim }}
{{- else if .Values.redis.persistence.enabled }}{{ include "ferry.fullname" . }}-redis
{{- end }}
{{- end }}

{{- define "ferry.metricsSecret" -}}
{{- .Values.monitoring.existingSecret | default (printf "%s-metrics" (include "ferry.fullname" .)) }}
{{- end }}

{{- define "ferry.keySecret" -}}
{{- .Values.operator.existingSecret | default (printf "%s-operator" (include "ferry.fullname" .)) }}
{{- end }}

{{- /* The Secrets that the operator's pod creates unless they exist, each with its entry: a rendering depends on the values alone. */}}
{{- define "ferry.firstSecrets" -}}
{{- $all := list }}
{{- if not .Values.operator.existingSecret }}{{ $all = append $all (dict "name" (include "ferry.keySecret" .) "entry" "key") }}{{ end }}
{{- if and .Values.redis.enabled (not .Values.redis.existingSecret) }}
{{- $all = append $all (dict "name" (include "ferry.redisSecret" .) "entry" "password") }}
{{- end }}
{{- if not (or .Values.monitoring.existingSecret .Values.monitoring.token) }}
{{- $all = append $all (dict "name" (include "ferry.metricsSecret" .) "entry" "token") }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{- /* The Secrets that the operator may read. */}}
{{- define "ferry.ownSecrets" -}}
{{- $names := list (include "ferry.keySecret" .) }}
{{- range include "ferry.firstSecrets" . | fromJsonArray }}{{ $names = append $names .name }}{{ end }}
{{- if include "ferry.redisCertificate" . }}{{ $names = append $names (include "ferry.redisTlsSecret" .) }}{{ end }}
{{- uniq $names | toJson }}
{{- end }}

{{- /* The Lease of the operators of this release. */}}
{{- define "ferry.lease" -}}
{{- printf "%s-operator" (include "ferry.fullname" .) }}
{{- end }}

{{- /* Objects that jobs may name, and objects of the release itself: `kube/manifests/allowed.py` of the operator reads it. */}}
{{- define "ferry.jobsAllow" -}}
{{- $name := include "ferry.fullname" . }}
{{- $secrets := concat (list (include "ferry.keySecret" .) (include "ferry.redisSecret" .) (include "ferry.redisTlsSecret" .) (include "ferry.metricsSecret" .)) .Values.images.pullSecrets | compact }}
{{- $claims := list (include "ferry.redisClaim" .) (printf "data-%s-redis-0" $name) | compact | uniq }}
{{- $own := dict "secrets" $secrets "serviceAccounts" (list (include "ferry.operatorAccount" .)) "claims" $claims }}
{{- $allow := .Values.jobs.allow }}
{{- $accounts := concat $allow.serviceAccounts .Values.jobs.driverAccounts | uniq }}
{{- merge (dict "serviceAccounts" $accounts "own" $own) $allow | toJson }}
{{- end }}

{{- define "ferry.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.user }}
runAsUser: {{ int . }}
runAsGroup: {{ int . }}
fsGroup: {{ int . }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ferry.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ferry.pullSecrets" -}}
{{- with .Values.images.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Placement of a pod: the keys for it in `operator` or `redis`. */}}
{{- define "ferry.placement" -}}
{{- with .nodeSelector -}}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* Of the release's Redis: for TLS, and for clear text, which Redis closes when no older run needs it. */}}
{{- define "ferry.redisPorts" -}}
[{port: 6380}, {port: 6379}]
{{- end }}

{{- /* Egress to the registry: the release's pod, or the port of your own Redis at any address. */}}
{{- define "ferry.redisPeer" -}}
{{- if .Values.redis.enabled -}}
- to:
    - podSelector:
        matchLabels: {{- include "ferry.selector" . | nindent 10 }}
          app.kubernetes.io/component: redis
      {{- if .far }}
      {{- include "ferry.releaseNamespace" . | nindent 6 }}
      {{- end }}
  ports: {{ include "ferry.redisPorts" . }}
{{- else -}}
- ports: [{port: {{ regexFind ":[0-9]+" (trimPrefix "rediss:" (trimPrefix "redis:" .Values.redis.url)) | trimPrefix ":" | default 6379 }}}]
{{- end }}
{{- end }}

{{- define "ferry.monitorLabels" -}}
{{ include "ferry.labels" . }}
{{- with .Values.monitoring.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The token that a monitor sends at every scrape. */}}
{{- define "ferry.monitorToken" -}}
authorization:
  credentials: {name: {{ include "ferry.metricsSecret" . }}, key: token}
{{- end }}

"""Jobs on a cluster, for the `ferry` command: `kubectl streamjob` is the same command, and always means the cluster.

Everything goes through the API server with the user's own rights: a job is its StreamJob with what the operator wrote
into its status, its events, pods and logs. Nothing here talks to a driver, and Secrets are never read. The client of
Kubernetes is imported when a cluster is meant, and not before.

| file | |
|---|---|
| reach | which job is meant: one of this machine or of a cluster, and of which |
| port | what is asked of the API server beyond the operator's own verbs |
| remote | a job, or all of a namespace, on a cluster: `client.Job` |
| wishes | pure: what users ask for by annotations |
| tables | pure: what is shown of a job |
| follow | a handover, until the job is at rest |
| proposal, forecast | pure: what a change would do, and how much would move |
| logs | logs of a job's pods and of the operator's |
| bundle, redact | everything about a job that may be handed on, without secrets |
| commands | the command line |
"""

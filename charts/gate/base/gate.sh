#!/usr/bin/env bash
# Starts the gate's Job, waits until it finishes, prints its log, and exits with rolldrop's exit status:
#
#   charts/gate/base/gate.sh [options of kubectl, such as --namespace shop --context staging]
#
# First deletes the Job of an earlier gate. Needs kubectl.
set -euo pipefail

gate() { kubectl "$@" "${options[@]+"${options[@]}"}"; }
options=("$@")
job=rolldrop-gate

gate delete job "$job" --ignore-not-found --cascade=foreground --wait >&2
gate create job "$job" --from="cronjob/$job" >&2
ended=
while [ -z "$ended" ]; do
  sleep 2
  # If someone deletes the Job, this command fails.
  ended=$(gate get job "$job" --output 'jsonpath={.status.conditions[?(@.status=="True")].type}')
  # Newer clusters announce the result before they set Complete or Failed.
  case " $ended " in *" Complete "* | *" Failed "*) ;; *) ended= ;; esac
done
status=$(gate get pods --selector "job-name=$job" \
  --output 'jsonpath={.items[0].status.containerStatuses[0].state.terminated.exitCode}' || true)
# A pod whose image cannot be pulled has no log.
gate logs "job/$job" || true
# A Job that was stopped from outside, for example by its deadline, has measured nothing.
exit "${status:-2}"

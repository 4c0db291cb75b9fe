//! All parameters of an embedded cluster with their defaults and where these come from, for help
//! and documentation.

use super::Config;
use super::duration::to_text;
use super::latency::Latencies;

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its path in the configuration.
    pub name: String,
    /// Its default, as it is written there.
    pub default: String,
    /// What it is, and the source of its default.
    pub about: String,
}

/// Every parameter, section by section; the delays come last.
pub fn all() -> Vec<Parameter> {
    let config = Config::default();
    let Config { api_server, scheduler, controllers, kubelet, .. } = &config;
    let settings = [
        ("nodes", config.nodes.to_string(), "number of nodes"),
        ("dataplane", "auto".to_owned(), "auto, kernel or userspace"),
        (
            "images",
            "{}".to_owned(),
            "what images say, such as {\"nginx\": {\"stopSignal\": \"SIGQUIT\"}}: the STOPSIGNAL for \
             containers without a lifecycle.stopSignal; the name is the last component, without tag or digest",
        ),
        (
            "goneAddress",
            written(config.gone_address),
            "what becomes of connections to a pod that is gone (kernel dataplane)",
        ),
        (
            "backgroundChurn",
            config.background_churn.to_string(),
            "changes of an unrelated EndpointSlice per second, at random; each makes Service proxies sync",
        ),
        (
            "firstProbeMissed",
            format!("{:.3}", config.first_probe_missed),
            "share of first probes that come a period late (15 of 90 measured starts)",
        ),
        (
            "serviceProxy.minSyncPeriod",
            to_text(config.service_proxy.min_sync_period),
            "least time from the end of one sync to the next (kube-proxy: minSyncPeriod)",
        ),
        (
            "apiServer.defaultNotReadyTolerationSeconds",
            api_server.default_not_ready_toleration_seconds.to_string(),
            "how long pods stay on a node that is not ready, unless they say otherwise \
             (kube-apiserver: --default-not-ready-toleration-seconds)",
        ),
        (
            "apiServer.defaultUnreachableTolerationSeconds",
            api_server.default_unreachable_toleration_seconds.to_string(),
            "the same for a node that cannot be reached \
             (kube-apiserver: --default-unreachable-toleration-seconds)",
        ),
        (
            "apiServer.bookmarkPeriod",
            to_text(api_server.bookmark_period),
            "pause between two bookmarks of a watch (kube-apiserver: defaultBookmarkFrequency)",
        ),
        (
            "scheduler.podInitialBackoff",
            to_text(scheduler.pod_initial_backoff),
            "pause after a pod fitted nowhere, doubling \
             (pkg/scheduler/backend/queue: DefaultPodInitialBackoffDuration)",
        ),
        (
            "scheduler.podMaxBackoff",
            to_text(scheduler.pod_max_backoff),
            "the longest such pause (pkg/scheduler/backend/queue: DefaultPodMaxBackoffDuration)",
        ),
        (
            "controllers.kubeApiQps",
            controllers.kube_api_qps.to_string(),
            "calls of one controller per second (kube-controller-manager: --kube-api-qps)",
        ),
        (
            "controllers.kubeApiBurst",
            controllers.kube_api_burst.to_string(),
            "calls of one controller at once (kube-controller-manager: --kube-api-burst)",
        ),
        (
            "controllers.endpointSliceSyncBackOff",
            to_text(controllers.endpoint_slice_sync_back_off),
            "EndpointSlice: pause after a failed write, doubling \
             (pkg/controller/endpointslice: defaultSyncBackOff)",
        ),
        (
            "controllers.endpointSliceMaxSyncBackOff",
            to_text(controllers.endpoint_slice_max_sync_back_off),
            "EndpointSlice: the longest such pause (pkg/controller/endpointslice: maxSyncBackOff)",
        ),
        (
            "controllers.disruptionDeletionTimeout",
            to_text(controllers.disruption_deletion_timeout),
            "PodDisruptionBudget: how long an approved eviction may take to become a deletion \
             (pkg/controller/disruption: DeletionTimeout)",
        ),
        (
            "controllers.stalePodDisruptionTimeout",
            to_text(controllers.stale_pod_disruption_timeout),
            "condition DisruptionTarget: when that of an eviction that came to nothing is taken back \
             (pkg/controller/disruption: stalePodDisruptionTimeout)",
        ),
        (
            "controllers.nodeMonitorPeriod",
            to_text(controllers.node_monitor_period),
            "how often the health of the nodes is looked at \
             (kube-controller-manager: --node-monitor-period)",
        ),
        (
            "controllers.nodeMonitorGracePeriod",
            to_text(controllers.node_monitor_grace_period),
            "how long a node may show no life until its state is unknown \
             (kube-controller-manager: --node-monitor-grace-period)",
        ),
        (
            "controllers.nodeStartupGracePeriod",
            to_text(controllers.node_startup_grace_period),
            "the same for a node that has never said whether it is ready \
             (kube-controller-manager: --node-startup-grace-period)",
        ),
        (
            "controllers.nodeEvictionRate",
            controllers.node_eviction_rate.to_string(),
            "failed nodes per second that are emptied while most of their zone is well \
             (kube-controller-manager: --node-eviction-rate)",
        ),
        (
            "controllers.secondaryNodeEvictionRate",
            controllers.secondary_node_eviction_rate.to_string(),
            "the same in a large zone that is not well; in a small one, none are \
             (kube-controller-manager: --secondary-node-eviction-rate)",
        ),
        (
            "controllers.largeClusterSizeThreshold",
            controllers.large_cluster_size_threshold.to_string(),
            "a zone with more nodes is large (kube-controller-manager: --large-cluster-size-threshold)",
        ),
        (
            "controllers.unhealthyZoneThreshold",
            controllers.unhealthy_zone_threshold.to_string(),
            "share of failed nodes, three at the least, from which a zone is not well \
             (kube-controller-manager: --unhealthy-zone-threshold)",
        ),
        (
            "controllers.podGcCheckPeriod",
            to_text(controllers.pod_gc_check_period),
            "how often pods of nodes that do not exist are looked for (pkg/controller/podgc: gcCheckPeriod)",
        ),
        (
            "controllers.podGcQuarantineTime",
            to_text(controllers.pod_gc_quarantine_time),
            "how long a node has to be missed before its pods are removed \
             (pkg/controller/podgc: quarantineTime)",
        ),
        (
            "controllers.jobPodFailureBackOff",
            to_text(controllers.job_pod_failure_back_off),
            "Job: pause after a failure, doubling (pkg/controller/job: DefaultJobPodFailureBackOff)",
        ),
        (
            "controllers.jobPodFailureBackOffMax",
            to_text(controllers.job_pod_failure_back_off_max),
            "Job: the longest such pause (pkg/controller/job: MaxJobPodFailureBackOff)",
        ),
        (
            "kubelet.nodeStatusUpdateFrequency",
            to_text(kubelet.node_status_update_frequency),
            "how often it is looked at whether the node's status has changed (KubeletConfiguration)",
        ),
        (
            "kubelet.nodeStatusReportFrequency",
            to_text(kubelet.node_status_report_frequency),
            "how often a node's status is written that has not changed (KubeletConfiguration)",
        ),
        (
            "kubelet.nodeLeaseDurationSeconds",
            kubelet.node_lease_duration_seconds.to_string(),
            "for how long a node's Lease is taken; it is renewed after a quarter (KubeletConfiguration)",
        ),
        (
            "kubelet.statusSyncPeriod",
            to_text(kubelet.status_sync_period),
            "how often a pod's status is written again if somebody has changed it \
             (pkg/kubelet/status: syncPeriod)",
        ),
        (
            "kubelet.evictionMonitoringPeriod",
            to_text(kubelet.eviction_monitoring_period),
            "how often it is looked at whether pods take up more storage than they may \
             (pkg/kubelet: evictionMonitoringPeriod)",
        ),
        (
            "kubelet.volumeStatsAggPeriod",
            to_text(kubelet.volume_stats_agg_period),
            "how often it is found out how much a pod's volumes hold, up to twice as long \
             (KubeletConfiguration)",
        ),
        (
            "kubelet.minimumGracePeriodInSeconds",
            kubelet.minimum_grace_period_in_seconds.to_string(),
            "least time between stop signal and SIGKILL \
             (pkg/kubelet/kuberuntime: minimumGracePeriodInSeconds)",
        ),
        (
            "kubelet.initialCrashLoopBackOff",
            to_text(kubelet.initial_crash_loop_back_off),
            "pause before a container's second restart, doubling; the first comes at once \
             (pkg/kubelet: initialCrashLoopBackOff)",
        ),
        (
            "kubelet.maxCrashLoopBackOff",
            to_text(kubelet.max_crash_loop_back_off),
            "the longest such pause (pkg/kubelet: MaxCrashLoopBackOff)",
        ),
        (
            "kubelet.crashLoopBackOffExpiry",
            to_text(kubelet.crash_loop_back_off_expiry),
            "a container that ran this long is restarted at once again \
             (pkg/kubelet: HasExpiredFunc of crashLoopBackOff)",
        ),
        (
            "kubelet.backOffPeriod",
            to_text(kubelet.back_off_period),
            "pause after a container's configuration could not be made (pkg/kubelet: backOffPeriod)",
        ),
        (
            "kubelet.backOffOnTransientErrorPeriod",
            to_text(kubelet.back_off_on_transient_error_period),
            "pause after a sandbox could not be made (pkg/kubelet: backOffOnTransientErrorPeriod)",
        ),
        (
            "kubelet.volumeInitialBackOff",
            to_text(kubelet.volume_initial_back_off),
            "pause after a volume could not be made, doubling \
             (pkg/util/goroutinemap/exponentialbackoff: initialDurationBeforeRetry)",
        ),
        (
            "kubelet.volumeMaxBackOff",
            to_text(kubelet.volume_max_back_off),
            "the longest such pause \
             (pkg/util/goroutinemap/exponentialbackoff: maxDurationBeforeRetry)",
        ),
        (
            "kubelet.grpcDialBackOff",
            to_text(kubelet.grpc_dial_back_off),
            "pause before a gRPC probe dials a server again that was not there \
             (google.golang.org/grpc/backoff: DefaultConfig)",
        ),
        ("dns.ttl", to_text(config.dns.ttl), "how long DNS answers may be kept (CoreDNS: plugin kubernetes)"),
    ];
    let settings = settings.into_iter().map(|(name, default, about)| Parameter {
        name: name.to_owned(),
        default,
        about: about.to_owned(),
    });
    let delays = config.latencies.named().into_iter().zip(Latencies::descriptions());
    let delays = delays.map(|((name, latency), (_, about))| Parameter {
        name: format!("latencies.{name}"),
        default: latency.to_string(),
        about: about.replace('`', ""),
    });
    settings.chain(delays).collect()
}

/// A choice as it is written in a configuration.
fn written(choice: impl serde::Serialize) -> String {
    let written = serde_json::to_value(choice).unwrap_or_default();
    written.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The paths of all values that are no objects; a latency is one value.
    fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
        match value.as_object() {
            Some(map) if !map.is_empty() && !path.starts_with("latencies.") => {
                for (name, value) in map {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    paths(value, &path, found);
                }
            }
            _ => found.push(path.to_owned()),
        }
    }

    #[test]
    fn no_parameter_is_left_out() {
        let mut found = Vec::new();
        paths(&serde_json::to_value(Config::default()).unwrap(), "", &mut found);
        let mut listed: Vec<_> = all().into_iter().map(|parameter| parameter.name).collect();
        found.sort();
        listed.sort();
        assert_eq!(listed, found);
        assert!(all().iter().all(|parameter| !parameter.about.is_empty() && !parameter.default.is_empty()));
    }
}

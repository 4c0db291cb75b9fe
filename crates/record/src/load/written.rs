//! Load settings as stored in `run.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::tls::WrittenTls;
use super::{Arrivals, ConnectionMode, Family, Http, Load, Pace, Pacing, StreamKind};
use crate::Evidence;
use crate::retry::is_idempotency_key;
use crate::row_values::POD_HEADER;

/// Defines [`LoadPlan`]: each field, and its value derived from the settings. Optional fields are absent if that value
/// is `None`.
macro_rules! load_plan {
    (
        $(#[$meta:meta])*
        of $load:ident
        always { $($(#[$doc:meta])* $name:ident: $type:ty = $value:expr,)* }
        sometimes { $($(#[$more_doc:meta])* $more:ident: $more_type:ty = $more_value:expr,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct LoadPlan {
            $($(#[$doc])* pub $name: $type,)*
            $($(#[$more_doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $more: Option<$more_type>,)*
            /// Settings unknown to this version.
            #[serde(default, flatten)]
            pub other: BTreeMap<String, serde_json::Value>,
        }

        impl From<&Load> for LoadPlan {
            fn from($load: &Load) -> Self {
                Self {
                    $($name: $value,)*
                    $($more: $more_value,)*
                    other: BTreeMap::new(),
                }
            }
        }
    };
}

load_plan! {
    /// Planned load of a run: the [settings](Load) that are safe to store, without header values and bodies, which may
    /// be secret.
    ///
    /// An absent field has its default, was not requested, or does not apply.
    of load
    always {
        /// Pacing of the requests.
        pacing: Pacing = load.pace.pacing(),
        /// Requests per second over all sources, as the mean of the counted part; 0 for a closed loop.
        rate: f64 = load.pace.mean_rate(),
        /// Length of the counted part, in seconds; 0 if it is given as a number of requests.
        duration_s: f64 = load.pace.duration().unwrap_or_default().as_secs_f64(),
        /// Length of the warm-up before the counted part, in seconds.
        warmup_s: f64 = load.warmup.as_secs_f64(),
        /// Use of connections: fresh, kept alive or mixed.
        connections: ConnectionMode = load.connections.mode,
        /// Connect timeout, in seconds.
        connect_timeout_s: f64 = load.timeout.connect.as_secs_f64(),
        /// Response timeout, in seconds.
        response_timeout_s: f64 = load.response_timeout().as_secs_f64(),
        /// Statuses that count as success, as ranges.
        success: Vec<(u16, u16)> = load.success.clone(),
    }
    sometimes {
        /// Maximum number of simultaneously open connections.
        max_connections: usize = Some(load.max_connections()),
        /// Number of worker threads.
        workers: usize = Some(load.workers),
        /// Number of pods that sent the load; absent if the run's own machine sent it.
        load_workers: usize = None,
        /// Stages of a multi-stage open loop, in command-line form.
        stages: Vec<String> = stages(load),
        /// Distribution of requests in time, if not even.
        arrivals: Arrivals = Some(load.arrivals).filter(|arrivals| *arrivals != Arrivals::Even),
        /// Seed for random choices, if there are any.
        seed: u64 = load.is_random().then_some(load.seed),
        /// HTTP version to speak.
        http: Http = Some(load.spoken()),
        /// Maximum number of concurrent requests on an HTTP/2 connection, if HTTP/2 may be spoken.
        #[serde(alias = "streams")]
        max_concurrent_streams: usize = (load.spoken() != Http::Http1).then(|| load.max_concurrent_streams()),
        /// Share of requests on fresh connections, if fresh and keep-alive are mixed.
        fresh_share: f64 = load.connections.share,
        /// Maximum number of requests per connection.
        max_requests_per_connection: u64 = load.connections.max_requests,
        /// Age, in seconds, from which a connection is no longer used for new requests.
        max_connection_age_s: f64 = load.connections.max_age.map(|age| age.as_secs_f64()),
        /// Maximum number of retries of a failed request.
        retries: u32 = Some(load.retry.times).filter(|times| *times > 0),
        /// HTTP methods by target name. Several methods are joined with commas.
        methods: BTreeMap<String, String> = Some(load.methods()),
        /// True if requests have an Idempotency-Key.
        idempotency_key: bool = load.header_names().any(is_idempotency_key).then_some(true),
        /// Names of additional request headers, without the values, which may be secret.
        headers: Vec<String> = present(load.headers.iter().map(|(name, _)| name.clone())),
        /// gRPC method to call.
        grpc: String = load.grpc.as_ref().map(|grpc| grpc.rpc.to_string()),
        /// gRPC statuses that count as success.
        grpc_success: Vec<i32> = load.grpc.as_ref().map(|grpc| grpc.success.clone()),
        /// Kind of the requested streams.
        stream: StreamKind = load.stream.as_ref().map(|stream| stream.kind),
        /// Pattern of the event that ends a stream, if it was given.
        stream_end: String = load.stream.as_ref().and_then(|stream| stream.end.as_ref().map(ToString::to_string)),
        /// Law of the requested stream lengths, if it was given.
        stream_length: String = load.stream.as_ref().and_then(|stream| stream.length.as_ref().map(ToString::to_string)),
        /// Finish reasons that count as success, if they were given.
        finish_reasons: Vec<String> = load.stream.as_ref().and_then(|stream| {
            stream.finish_reasons.as_ref().map(|reasons| reasons.iter().cloned().collect())
        }),
        /// Maximum time without any byte of a stream, in seconds.
        stall_timeout_s: f64 = load.stream.as_ref().map(|stream| stream.stall_timeout.as_secs_f64()),
        /// Response header that names the pod, if it is not the recording proxy's.
        pod_header: String = Some(load.pod_header.clone()).filter(|name| name != POD_HEADER),
        /// Regular expression that finds the pod's name in response bodies.
        pod_body: String = load.pod_body.clone(),
        /// Overrides of the connection addresses in the URLs.
        connect_to: Vec<String> = present(load.connect_to.iter().map(ToString::to_string)),
        /// Unix socket for all connections.
        unix_socket: String = load.unix_socket.as_ref().map(|path| path.display().to_string()),
        /// Address family that connections are restricted to: `IPv4` or `IPv6`.
        family: String = (load.dns.family != Family::Any).then(|| load.dns.family.label().to_owned()),
        /// TLS settings, if a target uses TLS.
        tls: WrittenTls = load.is_secure().then(|| load.tls.written()),
        /// TLS timeout, in seconds, if a target uses TLS.
        tls_timeout_s: f64 = load.is_secure().then_some(load.timeout.tls.as_secs_f64()),
        /// Timeout for the first byte of the response, in seconds.
        first_byte_timeout_s: f64 = load.timeout.first_byte.map(|limit| limit.as_secs_f64()),
        /// Lead time before a request is due during which the worker polls the clock, in seconds.
        spin_s: f64 = (!load.spin.is_zero()).then_some(load.spin.as_secs_f64()),
        /// Source ports of connections.
        source_ports: String = load.source_ports.map(|ports| ports.to_string()),
        /// Additional evidence of where connections went.
        evidence: Evidence = load.evidence,
    }
}

fn stages(load: &Load) -> Option<Vec<String>> {
    match &load.pace {
        Pace::Open(stages) if load.pace.pacing() == Pacing::Stages => {
            Some(stages.iter().map(ToString::to_string).collect())
        }
        _ => None,
    }
}

/// Returns the strings, if there are any.
fn present(texts: impl Iterator<Item = String>) -> Option<Vec<String>> {
    Some(texts.collect()).filter(|texts: &Vec<_>| !texts.is_empty())
}

impl LoadPlan {
    /// Returns the optional settings, in the form used by `run.json`.
    pub fn further(&self) -> BTreeMap<String, serde_json::Value> {
        let written = |plan: &Self| -> BTreeMap<String, serde_json::Value> {
            serde_json::to_value(plan).and_then(serde_json::from_value).unwrap_or_default()
        };
        let of_every = written(&Self::default());
        written(self).into_iter().filter(|(name, _)| !of_every.contains_key(name)).collect()
    }

    /// Returns true if the load was a closed loop.
    pub fn is_closed_loop(&self) -> bool {
        self.pacing == Pacing::ClosedLoop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_plan_omits_secrets() {
        let load = Load {
            headers: vec![("Authorization".into(), "Bearer hush".into())],
            body: b"hush".to_vec(),
            ..Load::new("http://web/")
        };
        let written = serde_json::to_string(&LoadPlan::from(&load)).unwrap();
        assert!(written.contains("Authorization") && !written.contains("hush"), "{written}");
    }
}

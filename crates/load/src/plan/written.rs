//! A plan as `run.json` holds it.

use std::collections::{BTreeMap, BTreeSet};

use super::Plan;
use crate::target::PlannedTarget;
use rolldrop_record::load::Pacing;
use rolldrop_record::load::{Arrivals, Family, Http, Pace};
use rolldrop_record::row::POD_HEADER;
use rolldrop_record::run_info::{self, Balances, BalancesBecause, LoadPlan, Role, Source};

impl Plan {
    /// Returns the plan as `run.json` holds it, without the values of headers and bodies: they may hold secrets.
    pub fn load_plan(&self) -> LoadPlan {
        let settings = &self.settings;
        let pacing = settings.pace.pacing();
        let stages = match &settings.pace {
            Pace::Open(stages) if pacing == Pacing::Stages => Some(texts(stages)),
            _ => None,
        };
        let is_poisson = settings.arrivals == Arrivals::Poisson;
        let headers: Vec<String> = settings.headers.iter().map(|(name, _)| name.clone()).collect();
        let has_key = self.targets.iter().any(PlannedTarget::has_idempotency_key);
        let is_secure = self.tls.is_some();
        LoadPlan {
            pacing,
            rate: settings.pace.mean_rate(),
            duration_s: settings.pace.duration().unwrap_or_default().as_secs_f64(),
            warmup_s: settings.warmup.as_secs_f64(),
            connections: settings.connections.mode,
            connect_timeout_s: settings.timeout.connect.as_secs_f64(),
            response_timeout_s: settings.timeout.response.as_secs_f64(),
            success: settings.success.clone(),
            max_connections: Some(self.max_connections),
            workers: Some(settings.workers),
            load_workers: None,
            stages,
            arrivals: is_poisson.then_some(Arrivals::Poisson),
            seed: (is_poisson || settings.template).then_some(settings.seed),
            http: Some(settings.http),
            streams: (settings.http != Http::Http1).then(|| self.streams()),
            fresh_share: settings.connections.share,
            max_requests_per_connection: settings.connections.max_requests,
            max_connection_age_s: settings.connections.max_age.map(|age| age.as_secs_f64()),
            retries: Some(settings.retry.times).filter(|retries| *retries > 0),
            methods: Some(self.methods()),
            idempotency_key: has_key.then_some(true),
            headers: Some(headers).filter(|names| !names.is_empty()),
            grpc: settings.grpc.as_ref().map(|grpc| grpc.rpc.to_string()),
            grpc_success: settings.grpc.as_ref().map(|grpc| grpc.success.clone()),
            pod_header: Some(settings.pod_header.clone()).filter(|name| name != POD_HEADER),
            pod_body: settings.pod_body.clone(),
            connect_to: Some(texts(&settings.connect_to)).filter(|all| !all.is_empty()),
            unix_socket: settings.unix_socket.as_ref().map(|path| path.display().to_string()),
            family: (settings.dns.family != Family::Any).then(|| settings.dns.family.label().to_owned()),
            tls: is_secure.then(|| settings.tls.written()),
            tls_timeout_s: is_secure.then_some(settings.timeout.tls.as_secs_f64()),
            first_byte_timeout_s: settings.timeout.first_byte.map(|limit| limit.as_secs_f64()),
            spin_s: (!settings.spin.is_zero()).then_some(settings.spin.as_secs_f64()),
            source_ports: settings.source_ports.map(|ports| ports.to_string()),
            evidence: settings.evidence,
            other: BTreeMap::new(),
        }
    }

    /// Returns the methods of each target. Several methods under one name are joined; no client is known to replay
    /// that.
    fn methods(&self) -> BTreeMap<String, String> {
        let mut methods: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for target in &self.targets {
            methods.entry(target.name.to_string()).or_default().insert(target.method.as_str());
        }
        let joined = |(name, methods): (String, BTreeSet<&str>)| {
            (name, methods.into_iter().collect::<Vec<_>>().join(", "))
        };
        methods.into_iter().map(joined).collect()
    }

    /// Returns the targets as `run.json` lists them, without Service and routing, which the load does not know.
    pub fn targets(&self) -> Vec<run_info::Target> {
        let target = |target: &PlannedTarget| run_info::Target {
            name: target.name.to_string(),
            url: target.url.clone(),
            consumer: target.name.to_string(),
            balances: Balances::Connections,
            balances_because: BalancesBecause::Assumed,
            service: None,
            routing: None,
            node: None,
        };
        self.targets.iter().map(target).collect()
    }

    /// Returns the load's sources as `run.json` lists them, for a load in the process that writes the run directory.
    pub fn recorders(&self) -> Vec<Source> {
        let recorder = |name| Source {
            name,
            role: Role::Load,
            clock_offset_ns: 0,
            clock_uncertainty_ns: Some(0),
            rows: None,
        };
        self.sources().into_iter().map(recorder).collect()
    }
}

fn texts<T: ToString>(all: &[T]) -> Vec<String> {
    all.iter().map(T::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::load::Load;

    #[test]
    fn written_plan_omits_secrets() {
        let plan = Plan::new(Load {
            headers: vec![("Authorization".into(), "Bearer hush".into())],
            body: b"hush".to_vec(),
            ..Load::new("http://web/")
        });
        let written = serde_json::to_string(&plan.unwrap().load_plan()).unwrap();
        assert!(written.contains("Authorization") && !written.contains("hush"), "{written}");
    }
}

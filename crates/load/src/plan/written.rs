//! A plan as `run.json` holds it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Connections, Http, Plan, PlannedTarget};
use crate::connect_to::ConnectTo;
use crate::pace::{Arrivals, Pace, Stage};
use crate::resolve::Family;
use rolldrop_record::row::POD_HEADER;
use rolldrop_record::run_info::{self, Balances, BalancesBecause, LoadPlan, Pacing, Role, Source};

impl Plan {
    /// The plan as `run.json` holds it. Headers and body stay out: they may hold secrets.
    pub fn load_plan(&self) -> LoadPlan {
        let settings = &self.settings;
        let pacing = settings.pace.pacing();
        let mut other = BTreeMap::from([
            ("http".to_owned(), settings.http.as_str().into()),
            ("max_connections".to_owned(), self.max_connections.into()),
            ("workers".to_owned(), settings.workers.into()),
        ]);
        if let Pace::Open(stages) = &settings.pace
            && pacing == Pacing::Stages
        {
            let stages: Vec<_> = stages.iter().map(Stage::to_string).collect();
            other.insert("stages".to_owned(), stages.into());
        }
        if settings.arrivals == Arrivals::Poisson {
            other.insert("arrivals".to_owned(), "poisson".into());
        }
        if settings.arrivals == Arrivals::Poisson || settings.template {
            other.insert("seed".to_owned(), settings.seed.into());
        }
        // Names alone: values may be secrets.
        let headers = settings.headers.iter().map(|(name, _)| name.clone());
        let headers: Vec<String> = headers.collect();
        if !headers.is_empty() {
            other.insert("headers".to_owned(), headers.into());
        }
        let mut methods: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for target in &self.targets {
            methods.entry(target.name.to_string()).or_default().insert(target.method.as_str());
        }
        // Several under one name are no method of which it is known that clients replay it.
        let joined = |(name, methods): (String, BTreeSet<&str>)| {
            (name, methods.into_iter().collect::<Vec<_>>().join(", ").into())
        };
        other.insert(
            "methods".to_owned(),
            methods.into_iter().map(joined).collect::<serde_json::Map<_, _>>().into(),
        );
        if self.targets.iter().any(PlannedTarget::has_idempotency_key) {
            other.insert("idempotency_key".to_owned(), true.into());
        }
        let connect_to: Vec<String> = settings.connect_to.iter().map(ConnectTo::to_string).collect();
        if !connect_to.is_empty() {
            other.insert("connect_to".to_owned(), connect_to.into());
        }
        if settings.http != Http::Http1 {
            other.insert("streams".to_owned(), self.streams().into());
        }
        if let Some(evidence) = settings.evidence {
            other.insert("evidence".to_owned(), evidence.as_str().into());
        }
        if let Some(grpc) = &settings.grpc {
            other.insert("grpc".to_owned(), grpc.rpc.to_string().into());
            other.insert("grpc_success".to_owned(), grpc.success.clone().into());
        }
        if let Some(path) = &settings.unix_socket {
            other.insert("unix_socket".to_owned(), path.display().to_string().into());
        }
        if settings.dns.family != Family::Any {
            other.insert("family".to_owned(), settings.dns.family.to_string().into());
        }
        if self.tls.is_some() {
            other.insert("tls_timeout_s".to_owned(), settings.tls_timeout.as_secs_f64().into());
            other.insert("tls".to_owned(), settings.tls.summary());
        }
        if let Some(limit) = settings.first_byte_timeout {
            other.insert("first_byte_timeout_s".to_owned(), limit.as_secs_f64().into());
        }
        if !settings.spin.is_zero() {
            other.insert("spin_s".to_owned(), settings.spin.as_secs_f64().into());
        }
        if settings.pod_header != POD_HEADER {
            other.insert("pod_header".to_owned(), settings.pod_header.clone().into());
        }
        if let Some(pattern) = &settings.pod_body {
            other.insert("pod_body".to_owned(), pattern.as_str().into());
        }
        if let Some(max) = settings.max_requests {
            other.insert("max_requests_per_connection".to_owned(), max.into());
        }
        if let Some(age) = settings.max_age {
            other.insert("max_connection_age_s".to_owned(), age.as_secs_f64().into());
        }
        if settings.retries > 0 {
            other.insert("retries".to_owned(), settings.retries.into());
        }
        if let Some(ports) = settings.source_ports {
            other.insert("source_ports".to_owned(), ports.to_string().into());
        }
        if let Connections::Mixed(share) = settings.connections {
            other.insert("fresh_share".to_owned(), share.into());
        }
        LoadPlan {
            pacing,
            rate: settings.pace.mean_rate(),
            duration_s: settings.pace.duration().unwrap_or_default().as_secs_f64(),
            warmup_s: settings.warmup.as_secs_f64(),
            connections: settings.connections.as_str().to_owned(),
            connect_timeout_s: settings.connect_timeout.as_secs_f64(),
            response_timeout_s: settings.response_timeout.as_secs_f64(),
            success: settings.success.clone(),
            other,
        }
    }

    /// The targets as `run.json` lists them, where nothing is known of who routes to them.
    pub fn targets(&self) -> Vec<run_info::Target> {
        let target = |target: &PlannedTarget| run_info::Target {
            name: target.name.to_string(),
            url: target.url.clone(),
            consumer: target.name.to_string(),
            balances: Balances::Connections,
            balances_because: Some(BalancesBecause::Assumed),
            service: None,
            routing: None,
        };
        self.targets.iter().map(target).collect()
    }

    /// The load's sources as `run.json` lists them, where nobody else keeps the time.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Settings;

    #[test]
    fn secrets_are_not_in_the_plan_that_is_written() {
        let plan = Plan::new(Settings {
            headers: vec![("Authorization".into(), "Bearer hush".into())],
            body: b"hush".to_vec(),
            ..Settings::new("http://web/")
        });
        let written = serde_json::to_string(&plan.unwrap().load_plan()).unwrap();
        assert!(written.contains("Authorization") && !written.contains("hush"), "{written}");
    }
}

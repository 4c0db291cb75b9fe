//! Tests of consumers that have their own clock, such as the load when it caches DNS answers.

use super::*;
use rolldrop_record::event::NameAnswer;

const HEADLESS: &str = "
apiVersion: rolldrop.dev/v1
kind: Scenario
metadata: {name: x}
spec:
  manifests: [{inline: {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: None}}}]
  target: {service: web}
  load: {duration: 60s, seed: 7}
  disruptions: [{at: 0s, action: deletePod, selector: app=web, every: 5s, repeat: 2, allowOutage: true}]
";

#[tokio::test]
async fn plan_announces_random_dns_phases() {
    let (client, _) = api(|method, path| with_discovery(method, path, (200, service().to_string())));
    let (session, _, _dir) = session(client, TimeLimits::default());
    let effects = async |text: &str| {
        let loaded = scenario::parse::<Value>(text, "x.yaml", std::path::Path::new("."), &[]).unwrap();
        let scenario = loaded.scenario;
        plan_run(&session.caller, &work(&scenario)).await.unwrap().effects
    };
    let headless = effects(HEADLESS).await;
    let said = headless.iter().filter(|effect| effect.contains("headless Service web")).collect::<Vec<_>>();
    assert_eq!(said.len(), 1, "{headless:?}");
    assert!(said[0].ends_with("(seed 7)"), "{said:?}");
    let other = effects(&HEADLESS.replace("clusterIP: None", "clusterIP: 10.96.0.7")).await;
    assert!(!other.iter().any(|effect| effect.contains("headless")), "{other:?}");
}

#[tokio::test]
async fn dns_period_equals_longest_ttl() {
    let (client, _) = api(|method, path| with_discovery(method, path, (200, service().to_string())));
    let (session, _, _dir) = session(client, TimeLimits::default());
    assert_eq!(session.observer.period(), Duration::ZERO);
    for ttl_s in [Some(4.0), Some(30.0), Some(11.0), None] {
        let answer = NameAnswer { name: "web.shop".into(), addresses: vec![], ttl_s, error: None };
        session.record_of("load-0", session.now(), EventKind::NameAnswer(answer));
    }
    assert_eq!(session.observer.period(), Duration::from_secs(30));
}

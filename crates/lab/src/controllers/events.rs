//! Deletes Event objects after one hour, as kube-apiserver does.

use std::time::Duration;

use crate::conditions::unix_seconds;
use crate::registry::Registry;
use crate::resource::Resource;
use crate::shared::ClusterContext;
use crate::status::note_failure;

const LIFETIME_SECONDS: i64 = 3600;
const PERIOD: Duration = Duration::from_secs(300);

pub(super) async fn run(shared: ClusterContext) {
    loop {
        tokio::time::sleep(PERIOD).await;
        forget_old(&shared.registry);
    }
}

fn forget_old(registry: &Registry) {
    let now = registry.now_seconds();
    for event in registry.all(Resource::Events, None) {
        let times = [&event["lastTimestamp"], &event["metadata"]["creationTimestamp"]];
        let last = times.into_iter().find_map(unix_seconds);
        if last.is_none_or(|last| last + LIFETIME_SECONDS <= now) {
            note_failure(registry.remove(Resource::Events, &event), "failed to delete an expired event");
        }
    }
}

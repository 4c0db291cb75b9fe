//! Forgets Event objects after an hour, as the API server does.

use std::time::Duration;

use jiff::Timestamp;

use crate::object::key;
use crate::registry::{DeleteOptions, Registry};
use crate::resource::Resource;
use crate::selector::Selection;
use crate::shared::Shared;

const LIFETIME_SECONDS: i64 = 3600;
const PERIOD: Duration = Duration::from_secs(300);

pub(super) async fn run(shared: Shared) {
    loop {
        tokio::time::sleep(PERIOD).await;
        forget_old(&shared.registry);
    }
}

fn forget_old(registry: &Registry) {
    let seconds = |text: &str| text.parse::<Timestamp>().map(Timestamp::as_second);
    let Ok(now) = seconds(&registry.now()) else { return };
    for event in registry.list(Resource::Events, None, &Selection::all()).items {
        let metadata = &event["metadata"];
        let last =
            event["lastTimestamp"].as_str().or(metadata["creationTimestamp"].as_str()).unwrap_or_default();
        if seconds(last).is_ok_and(|last| last + LIFETIME_SECONDS > now) {
            continue;
        }
        let (namespace, name) = key(&event);
        if let Err(status) = registry.delete(Resource::Events, &namespace, &name, &DeleteOptions::default()) {
            tracing::debug!(%status, "event not forgotten");
        }
    }
}

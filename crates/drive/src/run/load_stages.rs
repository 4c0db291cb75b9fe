//! Records the load's stages as events when they begin.

use std::convert::Infallible;
use std::time::Instant;

use rolldrop_load::RateStage;
use rolldrop_record::{Clock, EventKind, Stamp};

/// Records each stage when it begins; the first one begins at `zero`. Never returns.
pub async fn announce_stages(
    clock: Clock,
    zero: Stamp,
    stages: &[RateStage],
    mut record: impl FnMut(Stamp, EventKind),
) -> Infallible {
    let mut at = zero;
    for stage in stages {
        let instant = clock.instant(at).unwrap_or_else(Instant::now);
        tokio::time::sleep_until(instant.into()).await;
        let duration_s = stage.duration.as_secs_f64();
        record(at, EventKind::LoadStage { from: stage.from, to: stage.to, duration_s });
        at = at + stage.duration;
    }
    std::future::pending().await
}

//! Reports a load's progress to the viewer while it is sent, and passes interruptions on to the load.

use std::time::Duration;

use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use crate::operator::{Interrupts, Operator};
use crate::viewer::{Loading, Planned};
use rolldrop_load::Control;

/// Interval between progress reports.
const SAMPLED: Duration = Duration::from_millis(200);

/// Reports a load's progress until `running` completes, and passes interruptions on to the load: the first ends the
/// schedule, the second cuts off requests in flight. `part_of` describes the larger job that the load is part of.
pub async fn follow<T>(
    running: impl Future<Output = T>,
    control: &Control,
    planned: &Planned,
    part_of: Option<&dyn Fn() -> String>,
    operator: &Operator,
) -> T {
    let Operator { interrupts: Interrupts { stop, abort }, viewer } = operator;
    let mut ticks = interval(SAMPLED);
    let (began, mut is_stopped) = (Instant::now(), false);
    let never = CancellationToken::new();
    let (mut stop, mut abort) = (stop, abort);
    let mut running = std::pin::pin!(running);
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            _ = ticks.tick() => {
                let (progress, elapsed) = (control.progress(), began.elapsed());
                let part_of = part_of.map(|part_of| part_of());
                viewer.loads(Some(&Loading { planned, part_of, progress, elapsed, is_stopped }));
            }
            () = stop.cancelled() => {
                control.stop();
                stop = &never;
                is_stopped = true;
                viewer.say("stopping: waiting for requests in flight; press Ctrl-C again to cut them off");
            }
            () = abort.cancelled() => {
                control.abort();
                abort = &never;
            }
        }
    };
    viewer.loads(None);
    ended
}

//! A wait for pods, which ends early once one of them has said for some time that it cannot start.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::error::CoordinatorError;
use super::session::Session;

/// From one look to the next, if the watch shows no change.
const PERIOD: Duration = Duration::from_millis(500);
/// For this long a wait needs no reason; then it is asked for one again and again.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait.
pub(super) struct Waiting {
    deadline: Instant,
    /// See [`super::caller::Limits::stuck`].
    stuck: Duration,
    stuck_since: Option<Instant>,
    /// When its reason is asked for next.
    asked: Instant,
}

impl Waiting {
    /// Whether the limit has passed. `stuck` is why a pod cannot start, if one says so now.
    ///
    /// # Errors
    /// When it has said so for too long.
    pub(super) fn is_over(&mut self, stuck: Option<&impl Display>) -> Result<bool, CoordinatorError> {
        let now = Instant::now();
        match stuck {
            None => self.stuck_since = None,
            Some(why) if now >= *self.stuck_since.get_or_insert(now) + self.stuck => {
                return Err(CoordinatorError::PodNeverStarts(why.to_string()));
            }
            Some(_) => {}
        }
        Ok(now >= self.deadline)
    }

    /// Returns true when it is time to ask for the reason of a long wait.
    pub(super) fn wants_reason(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.asked;
        if is_due {
            self.asked = now + PATIENCE;
        }
        is_due
    }
}

impl Session {
    /// A wait that begins now.
    pub(super) fn waiting(&self, limit: Duration) -> Waiting {
        let now = Instant::now();
        let stuck = self.caller.limits.stuck;
        Waiting { deadline: now + limit, stuck, stuck_since: None, asked: now + PATIENCE }
    }

    /// Waits until the watch shows a change, or it is time to look again.
    pub(super) async fn look_again(&self, waiting: &Waiting) -> Result<(), CoordinatorError> {
        let at = (Instant::now() + PERIOD).min(waiting.deadline);
        self.caller.stoppable(timeout_at(at, self.views.changed())).await.map(drop)
    }
}

//! A wait for pods. It ends early once a pod has reported for some time that it cannot start.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::namespace_view::Views;
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};

/// Maximum time between two checks if the watch shows no change.
const PERIOD: Duration = Duration::from_millis(500);
/// Time after which to look up the reason for a wait, and then the interval between further lookups.
const PATIENCE: Duration = Duration::from_secs(10);

/// Limits of a wait, and its progress so far.
pub(crate) struct Waiting {
    deadline: Instant,
    /// See [`crate::api::caller::TimeLimits::stuck`].
    stuck: Duration,
    stuck_since: Option<Instant>,
    /// Time at which to look up the reason again.
    asked: Instant,
}

impl Waiting {
    /// Begins a wait with this limit.
    pub(crate) fn begin(caller: &Caller, limit: Duration) -> Self {
        let now = Instant::now();
        let stuck = caller.limits.stuck;
        Self { deadline: now + limit, stuck, stuck_since: None, asked: now + PATIENCE }
    }

    /// Returns true if the limit has passed. `stuck` is the reason that a pod cannot start, if a pod reports one now.
    ///
    /// # Errors
    /// [`CoordinatorError::PodNeverStarts`] if a pod has reported for some time that it cannot start.
    pub(crate) fn is_over(&mut self, stuck: Option<&impl Display>) -> Result<bool> {
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

    /// Returns true when it is time to look up the reason for a long wait.
    pub(super) fn wants_reason(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.asked;
        if is_due {
            self.asked = now + PATIENCE;
        }
        is_due
    }

    /// Waits until the watch shows a change, or until the next check is due.
    pub(crate) async fn look_again(&self, caller: &Caller, views: &Views) -> Result<()> {
        let at = (Instant::now() + PERIOD).min(self.deadline);
        caller.stoppable(timeout_at(at, views.changed())).await.map(drop)
    }
}

//! The display of a watch.

use std::io;

use rolldrop_report::WatchOutput;

/// Shows a watch in progress.
pub trait WatchViewer: Send + Sync {
    /// Called with a message or a warning. It may repeat text from the cluster, so control characters must be made
    /// visible, as in what is shown.
    fn say(&self, message: &str);

    /// Called with each termination once it has settled, each gap in what was seen, each watch that was refused, and at
    /// the end with what was read of each log.
    ///
    /// # Errors
    /// Fails if it cannot be shown, which ends the watch.
    fn show(&self, line: &WatchOutput) -> io::Result<()>;
}

/// Shows nothing.
#[cfg(test)]
pub(crate) struct NoViewer;

#[cfg(test)]
impl WatchViewer for NoViewer {
    fn say(&self, _message: &str) {}

    fn show(&self, _line: &WatchOutput) -> io::Result<()> {
        Ok(())
    }
}

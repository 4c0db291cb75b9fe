//! The display of a watch.

use std::io;

use rolldrop_report::WatchOutput;

/// Shows a watch in progress.
pub trait WatchViewer: Send + Sync {
    /// Called with a message about the watch itself.
    fn say(&self, message: &str);

    /// Called with a termination or a gap in what was seen, in order of time.
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

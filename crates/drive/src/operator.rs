//! The user who runs a command: the user's interruptions, and the view of progress.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::viewer::Viewer;

/// Interruptions by the user.
#[derive(Clone, Debug, Default)]
pub struct Interrupts {
    /// Cancelled by the first interruption, which ends the command gracefully.
    pub stop: CancellationToken,
    /// Cancelled by the second interruption, which ends the command immediately.
    pub abort: CancellationToken,
}

/// The user at the terminal.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Interruptions by the user.
    pub interrupts: Interrupts,
    /// View of the command's progress.
    pub viewer: Arc<dyn Viewer>,
}

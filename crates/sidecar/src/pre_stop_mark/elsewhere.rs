//! The preStop hook on systems without Linux containers: it does nothing.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::ProxyState;

/// Failure to notify a proxy.
#[derive(Debug, thiserror::Error)]
pub enum PreStopError {
    /// The hook runs only in a Linux container.
    #[error("the preStop hook runs in the proxy's container and needs Linux")]
    NeedsLinux,
}

/// Fails, because there is no proxy to notify.
///
/// # Errors
///
/// Always.
pub fn mark_pre_stop(_: SocketAddr) -> Result<(), PreStopError> {
    Err(PreStopError::NeedsLinux)
}

#[derive(Debug)]
pub(super) struct PreStopSocket(Infallible);

impl PreStopSocket {
    pub(super) fn bind(_: SocketAddr) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) async fn serve(self, _: Arc<ProxyState>) {
        match self.0 {}
    }
}

//! Violations of HTTP/2 by the peer.

use std::fmt;

use rolldrop_wire::http2::error_name;

/// A violation of the protocol, with the error code that is reported to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http2Fault {
    pub(super) code: u32,
    why: &'static str,
}

/// Error code of a fault (RFC 9113, 7).
#[derive(Clone, Copy)]
pub(super) struct FaultCode(u32);

pub(super) const PROTOCOL_ERROR: FaultCode = FaultCode(1);
pub(super) const FLOW_CONTROL_ERROR: FaultCode = FaultCode(3);
pub(super) const FRAME_SIZE_ERROR: FaultCode = FaultCode(6);
pub(super) const COMPRESSION_ERROR: FaultCode = FaultCode(9);
pub(super) const ENHANCE_YOUR_CALM: FaultCode = FaultCode(11);

impl FaultCode {
    /// Returns the fault with this code and reason.
    pub(super) const fn because(self, why: &'static str) -> Http2Fault {
        Http2Fault { code: self.0, why }
    }
}

impl fmt::Display for Http2Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", error_name(self.code), self.why)
    }
}

//! Responses from the proxy itself.

/// Reason why the proxy responds to a request itself instead of passing it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyRefusal {
    /// The head or the chunked body is not HTTP/1.
    Malformed,
    /// The end of the request cannot be determined unambiguously.
    AmbiguousLength,
    /// The head is larger than `MAX_HEAD_BYTES` or than the available room, or has more than `MAX_HEADERS` lines.
    HeadTooLarge,
    /// The method is CONNECT, but this is not a forward proxy.
    Connect,
    /// The version is not HTTP/1.0 or HTTP/1.1.
    Version,
}

impl ProxyRefusal {
    /// Returns the complete response.
    pub(super) const fn answer(self) -> &'static [u8] {
        match self {
            ProxyRefusal::Malformed => b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 28\r\n\r\nrolldrop: malformed request\n",
            ProxyRefusal::AmbiguousLength => b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 35\r\n\r\nrolldrop: ambiguous request length\n",
            ProxyRefusal::HeadTooLarge => b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 33\r\n\r\nrolldrop: request head too large\n",
            ProxyRefusal::Connect => b"HTTP/1.1 501 Not Implemented\r\nconnection: close\r\ncontent-length: 35\r\n\r\nrolldrop: CONNECT is not supported\n",
            ProxyRefusal::Version => b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-length: 35\r\n\r\nrolldrop: only HTTP/1 is supported\n",
        }
    }
}

//! A client, the corresponding app end, and the bytes sent and received by each.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use socket2::SockRef;

use super::super::super::refusal::ProxyRefusal;
use super::rules::Rules;
use super::script::ConversationSide;
use rolldrop_wire::http2::{FrameHeader, PREFACE, SETTINGS};

/// Maximum number of bytes that an end sends in a session.
const MOST_BYTES: usize = 512 * 1024;

/// Way in which the other side of a connection ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerEnding {
    Closed,
    Reset,
}

/// One end of a conversation.
pub(super) struct ConversationEnd {
    socket: Option<TcpStream>,
    pub(super) sent: Vec<u8>,
    pub(super) got: Vec<u8>,
    /// Number of bytes of `got` that have been compared.
    compared: usize,
    pub(super) stalls: bool,
    /// True once the end has stopped sending.
    pub(super) has_closed: bool,
    pub(super) ended: Option<PeerEnding>,
}

impl ConversationEnd {
    /// Returns an end with room for all bytes of a session so that its allocations are not attributed to the proxy.
    fn new(socket: Option<TcpStream>) -> Self {
        let [sent, got] = [MOST_BYTES, 2 * MOST_BYTES].map(Vec::with_capacity);
        Self { socket, sent, got, compared: 0, stalls: false, has_closed: false, ended: None }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Sends as much as the kernel accepts.
    pub(super) fn say(&mut self, mut bytes: &[u8]) {
        let Some(socket) = self.socket.as_mut().filter(|_| !self.has_closed) else { return };
        while !bytes.is_empty() && self.sent.len() + bytes.len() <= MOST_BYTES {
            match socket.write(bytes) {
                Ok(written) => {
                    self.sent.extend_from_slice(&bytes[..written]);
                    bytes = &bytes[written..];
                }
                // The reader will detect the reset again.
                Err(_) => return,
            }
        }
    }

    pub(super) fn close(&mut self) {
        if let Some(socket) = &self.socket
            && !std::mem::replace(&mut self.has_closed, true)
        {
            let _ = socket.shutdown(Shutdown::Write);
        }
    }

    pub(super) fn reset(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO));
        }
    }

    /// Reads available bytes; returns true if there were any.
    pub(super) fn listen(&mut self) -> bool {
        let Some(socket) = self.socket.as_mut().filter(|_| !self.stalls && self.ended.is_none()) else {
            return false;
        };
        let mut any = false;
        let mut room = [0; 16 * 1024];
        loop {
            match socket.read(&mut room) {
                Ok(0) => self.ended = Some(PeerEnding::Closed),
                Ok(read) => self.got.extend_from_slice(&room[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return any,
                Err(_) => self.ended = Some(PeerEnding::Reset),
            }
            any = true;
            if self.ended.is_some() {
                return true;
            }
        }
    }
}

/// A conversation through the proxy.
pub(super) struct Pair {
    pub(super) client: ConversationEnd,
    pub(super) app: ConversationEnd,
    pub(super) rules: Rules,
    /// Requests that were answered correctly.
    pub(super) answered: usize,
    /// True while only valid requests and responses have been sent.
    pub(super) is_clean: bool,
    /// True if something cut the conversation short, so not everything needs to arrive.
    pub(super) is_disturbed: bool,
    /// True if the proxy responded in the app's place.
    pub(super) is_refused: bool,
    stripped: Vec<u8>,
}

impl Pair {
    pub(super) fn new(client: TcpStream) -> Self {
        Self {
            client: ConversationEnd::new(Some(client)),
            app: ConversationEnd::new(None),
            rules: Rules::new(),
            answered: 0,
            is_clean: true,
            is_disturbed: false,
            is_refused: false,
            stripped: Vec::with_capacity(2 * MOST_BYTES),
        }
    }

    /// Notes that the app has accepted the connection of this pair.
    pub(super) fn accepted(&mut self, socket: TcpStream) {
        self.app.socket = Some(socket);
    }

    pub(super) fn end(&mut self, side: ConversationSide) -> &mut ConversationEnd {
        match side {
            ConversationSide::Client => &mut self.client,
            ConversationSide::App => &mut self.app,
        }
    }

    pub(super) fn say(&mut self, side: ConversationSide, bytes: &[u8]) {
        self.end(side).say(bytes);
        match side {
            ConversationSide::Client => self.rules.client_said(&self.client.sent),
            ConversationSide::App => self.rules.app_said(&self.app.sent),
        }
    }

    /// Reads at both ends and compares; returns true if anything arrived.
    pub(super) fn listen(&mut self, line: Option<&[u8]>) -> bool {
        let any = self.client.listen() | self.app.listen();
        if any {
            self.rules.client_got(&self.client.got);
            self.compare_requests();
            self.compare_answers(line);
        }
        any
    }

    /// Checks that the app receives what the client sent.
    fn compare_requests(&mut self) {
        let ConversationEnd { got, compared, .. } = &mut self.app;
        let said = self.client.sent.get(*compared..got.len());
        assert!(
            said == Some(&got[*compared..]),
            "the app received bytes that the client did not send, from byte {compared}"
        );
        *compared = got.len();
    }

    /// Checks that the client receives what the app sent, apart from the pod header line, or a response from the proxy
    /// itself.
    fn compare_answers(&mut self, line: Option<&[u8]>) {
        let ConversationEnd { got, compared, sent: asked, .. } = &mut self.client;
        let got = match line {
            None => &got[..],
            Some(line) => {
                self.stripped.clear();
                strip(got, &self.app.sent, line, &mut self.stripped);
                // Pod header lines inserted into HTTP/2 frames are not checked.
                if is_http2(asked, &self.app.sent) {
                    return;
                }
                &self.stripped[..]
            }
        };
        let from = (*compared).min(got.len());
        if self.app.sent.get(from..got.len()) == Some(&got[from..]) {
            *compared = got.len();
            return;
        }
        let same = got.iter().zip(&self.app.sent).take_while(|(got, sent)| got == sent).count();
        let is_own = (0..=same).rev().take(200).any(|from| is_refusal(&got[from..]));
        assert!(is_own, "the client received bytes that the app did not send, from byte {same}");
        self.is_refused = true;
    }

    /// Returns true if each side has received all bytes from the other side, and the end of the stream.
    pub(super) fn is_complete(&self) -> bool {
        let requests = self.app.got.len() == self.client.sent.len();
        let answers = self.client.got.len() >= self.app.sent.len();
        let closed = [&self.client, &self.app].map(|end| end.ended == Some(PeerEnding::Closed));
        requests && answers && closed == [true; 2]
    }

    /// Returns true if nothing more will arrive.
    pub(super) fn is_over(&self) -> bool {
        [&self.client, &self.app].iter().all(|end| end.ended.is_some() || end.socket.is_none())
    }
}

/// Copies the bytes that an end received, without the lines that the other end did not send at that place.
fn strip(got: &[u8], sent: &[u8], line: &[u8], to: &mut Vec<u8>) {
    let mut at = 0;
    while at < got.len() {
        // A pod header line can begin only where its first byte occurs.
        let plain = memchr::memchr(line[0], &got[at..]).unwrap_or(got.len() - at);
        to.extend_from_slice(&got[at..at + plain]);
        at += plain;
        let (got, sent) = (&got[at..], sent.get(to.len()..).unwrap_or_default());
        let Some(first) = got.first() else { return };
        if got.starts_with(line) && !sent.starts_with(line) {
            at += line.len();
        } else if sent.first() != Some(first) && line.starts_with(got) {
            // The rest of the line has not arrived yet.
            return;
        } else {
            to.push(*first);
            at += 1;
        }
    }
}

fn is_http2(requests: &[u8], answers: &[u8]) -> bool {
    let by_app = FrameHeader::read(answers).is_some_and(|first| first.kind == SETTINGS && first.stream == 0);
    requests.starts_with(PREFACE) || by_app
}

fn is_refusal(bytes: &[u8]) -> bool {
    use ProxyRefusal::{AmbiguousLength, Connect, HeadTooLarge, Malformed, Version};

    let all = [Malformed, AmbiguousLength, HeadTooLarge, Connect, Version];
    !bytes.is_empty() && all.iter().any(|refusal| refusal.answer().starts_with(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(got: &[u8], sent: &[u8]) -> String {
        let mut to = Vec::new();
        strip(got, sent, b"pod: a\r\n", &mut to);
        String::from_utf8(to).unwrap()
    }

    #[test]
    fn strip_removes_only_unsent_pod_lines() {
        assert_eq!(stripped(b"1\r\npod: a\r\n\r\nx", b"1\r\n\r\nx"), "1\r\n\r\nx");
        assert_eq!(stripped(b"1\r\npod: a\r\npod: a\r\n\r\n", b"1\r\npod: a\r\n\r\n"), "1\r\npod: a\r\n\r\n");
        assert_eq!(stripped(b"1\r\npod:", b"1\r\n\r\n"), "1\r\n");
        assert_eq!(stripped(b"1\r\npox", b"1\r\n\r\n"), "1\r\npox");
    }
}

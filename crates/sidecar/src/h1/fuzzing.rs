//! Entry points of fuzz targets (`crate::fuzzing`): heads and bodies as the relay reads them.

use std::iter;

use bytes::{Buf, BytesMut};

use super::head::{HeadScan, IncomingRequest, IncomingResponse, ResponseHead};
use rolldrop_testing::pieces;
use rolldrop_wire::http1::Body;

/// Line that is added to responses.
const LINE: &[u8] = b"rolldrop-pod: web-1\r\n";

/// Checks that requests end at the same byte regardless of how they are split, and that no complete head of a refused
/// request is passed on.
pub(in super::super) fn requests(input: &[u8]) {
    let (bytes, pieces) = pieces(input);
    assert_eq!(ends_of_requests(iter::once(bytes)), ends_of_requests(pieces));
}

fn ends_of_requests<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<usize> {
    let (mut buf, mut at, mut ends) = (BytesMut::new(), 0, Vec::new());
    let (mut incoming, mut passed, mut body) = (IncomingRequest::default(), 0, None);
    for piece in pieces {
        buf.extend_from_slice(piece);
        while body.is_some() || !buf.is_empty() {
            if let Some(under_way) = &mut body {
                let Some(end) = take(under_way, &mut buf, &mut at) else { return ends };
                if !end {
                    break;
                }
                ends.push(at);
                (incoming, passed, body) = (IncomingRequest::default(), 0, None);
                continue;
            }
            match incoming.look(&buf) {
                Ok(HeadScan::Complete(head)) => {
                    assert!(passed < head.len);
                    buf.advance(head.len);
                    at += head.len;
                    body = Some(head.body);
                }
                Ok(HeadScan::Partial { safe }) => {
                    assert!(safe <= buf.len());
                    passed = passed.max(safe);
                    break;
                }
                Err(_) => {
                    let of_app = IncomingRequest::default().look(&buf[..passed]);
                    assert!(!matches!(of_app, Ok(HeadScan::Complete(_))));
                    return ends;
                }
            }
        }
    }
    ends
}

/// Checks that responses end at the same byte regardless of how they are split, and that the added header line changes
/// nothing else in the head.
pub(in super::super) fn responses(input: &[u8]) {
    let to_head = input.first().is_some_and(|first| first & 1 == 1);
    let (bytes, pieces) = pieces(input);
    assert_eq!(ends_of_responses(iter::once(bytes), to_head), ends_of_responses(pieces, to_head));
}

fn ends_of_responses<'a>(pieces: impl Iterator<Item = &'a [u8]>, to_head: bool) -> Vec<usize> {
    let (mut buf, mut at, mut ends) = (BytesMut::new(), 0, Vec::new());
    let (mut incoming, mut passed, mut body) = (IncomingResponse::default(), 0, None);
    for piece in pieces {
        buf.extend_from_slice(piece);
        while body.is_some() || !buf.is_empty() {
            if let Some(under_way) = &mut body {
                let Some(end) = take(under_way, &mut buf, &mut at) else { return ends };
                if !end {
                    break;
                }
                ends.push(at);
                (incoming, passed, body) = (IncomingResponse::default(), 0, None);
                continue;
            }
            match incoming.look(&buf, to_head) {
                HeadScan::Complete(ResponseHead { status: None, .. }) => return ends,
                HeadScan::Complete(head) => {
                    let (len, framing) = (head.len, format!("{:?} {:?}", head.status, head.body));
                    let under_way = insert(head, &buf, passed, to_head, &framing);
                    buf.advance(len);
                    at += len;
                    body = Some(under_way);
                }
                HeadScan::Partial { safe } => {
                    assert!(safe <= buf.len());
                    passed = passed.max(safe);
                    break;
                }
            }
        }
    }
    ends
}

/// Inserts the line into a head, part of which has been passed on; returns the head's body framing.
fn insert(mut head: ResponseHead, buf: &BytesMut, passed: usize, to_head: bool, framing: &str) -> Body {
    let (mut with_line, len) = (buf.clone(), head.len);
    head.insert(&mut with_line, LINE);
    assert_eq!((head.len, with_line.len()), (len + LINE.len(), buf.len() + LINE.len()));
    assert_eq!(with_line[..passed], buf[..passed]);
    match IncomingResponse::default().look(&with_line, to_head) {
        HeadScan::Complete(again) => {
            assert_eq!(
                (again.len, format!("{:?} {:?}", again.status, again.body)),
                (head.len, framing.to_owned())
            );
        }
        HeadScan::Partial { .. } => panic!("a complete head became incomplete"),
    }
    head.body
}

/// Skips the available part of a body; returns true if the body ends with it, `None` if the body is malformed.
fn take(body: &mut Body, buf: &mut BytesMut, at: &mut usize) -> Option<bool> {
    let taken = body.take(buf).ok()?;
    assert!(taken <= buf.len());
    buf.advance(taken);
    *at += taken;
    Some(body.is_done())
}

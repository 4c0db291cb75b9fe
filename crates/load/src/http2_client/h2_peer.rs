//! Tests the session against an independent server, from the `h2` crate.

use std::convert::Infallible;
use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use h2::server;
use http::{HeaderMap, Response};
use tokio::io::{DuplexStream, duplex};
use tokio::task::JoinSet;

use super::http2_session::Http2Session;
use super::session_io::SessionIo;
use super::stream_slot::{BodySink, StreamEnd};
use crate::request::http2_template;
use rolldrop_record::{Clock, Stamp};

/// Lengths of the bodies, in both directions; some exceed the windows of streams and connections.
const LENGTHS: [usize; 6] = [0, 1, 16_384, 16_385, 100_000, 3_000_000];

/// Returns each request's body, after reading it in full, with its checksum in a header and in the trailers.
async fn echo(stream: DuplexStream) {
    let mut builder = server::Builder::new();
    builder.max_concurrent_streams(3).initial_window_size(10_000).initial_connection_window_size(70_000);
    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let mut tasks = JoinSet::new();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tasks.spawn(async move {
            let mut body = request.into_body();
            let mut content = Vec::new();
            while let Some(piece) = body.data().await {
                let piece = piece.unwrap();
                body.flow_control().release_capacity(piece.len()).unwrap();
                content.extend_from_slice(&piece);
            }
            let response = Response::builder()
                .header("content-length", content.len())
                .header("sum", sum(&content))
                .header("long", "v".repeat(20_000));
            let mut sending = respond.send_response(response.body(()).unwrap(), false).unwrap();
            let trailers = HeaderMap::from_iter([("sum".parse().unwrap(), sum(&content).into())]);
            sending.send_data(content.into(), false).unwrap();
            sending.send_trailers(trailers).unwrap();
        });
    }
}

fn sum(content: &[u8]) -> u64 {
    content.iter().fold(7, |sum, byte| sum * 31 % 1_000_007 + u64::from(*byte))
}

#[tokio::test]
async fn h2_server_echoes_bodies_of_all_lengths() {
    let (client, server) = duplex(5000);
    let mut tasks = JoinSet::new();
    tasks.spawn(echo(server));
    let (mut session, mut io) = (Http2Session::new(usize::MAX), SessionIo::new(client, Clock::start()));
    let request = http::Request::post("http://web/").body(()).unwrap();
    for round in 0..2_u8 {
        let mut slots = Vec::new();
        for (number, length) in LENGTHS.into_iter().cycle().take(20).enumerate() {
            let body: Vec<u8> = (0..length).map(|at| at.to_le_bytes()[0] ^ round).collect();
            let sum = sum(&body).to_string();
            let slot = session.open(Stamp::default(), false, BodySink::default(), |block| {
                block.extend(http2_template::encode(&request));
                Ok::<_, Infallible>(Bytes::from(body))
            });
            slots.push((slot.unwrap(), length, sum, number % 7 == 6));
        }
        // Some requests are cancelled, before or while they are sent.
        for (slot, ..) in slots.extract_if(.., |(.., is_cancelled)| *is_cancelled) {
            session.close(slot);
        }
        poll_fn(|context| {
            let over = io.poll(context, &mut session);
            assert!(over.is_pending(), "{:?}", session.end);
            match slots.iter().all(|(slot, ..)| session.stream(*slot).end.is_some()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        for (slot, length, sum, _) in slots {
            let stream = session.stream(slot);
            assert_eq!(stream.end.map(|(end, _)| end), Some(StreamEnd::Complete));
            let told = [Some(&stream.headers), stream.trailers.as_ref()].map(|fields| fields?.text("sum"));
            assert_eq!(told, [Some(sum.as_str()); 2]);
            assert_eq!(stream.headers.text("content-length"), Some(&*length.to_string()));
            assert!(stream.sent > length as u64 && stream.received > 17_000 + length as u64);
            session.close(slot);
        }
        session.assert_bounds();
    }
}

//! Tests of each way in which a stream can end, as seen by a client on the wire and as recorded in the log.

use super::*;
use crate::StreamFault;

/// Longer than any test, so the stream never ends on its own.
const ENDLESS: &str = "length=1000h";
const SSE_PATHS: [&str; 2] = ["/v1/chat/completions", "/events"];
/// Part of the content of each numbered event, and of nothing else.
const FILLER: &str = "xxxxxxxxxxxxx";
/// Proper end of a chunked response.
const LAST_CHUNK: &str = "\r\n0\r\n\r\n";

impl Running {
    /// Returns a stream's log entry once the stream has ended.
    async fn stream_entry(&self, id: &str) -> Value {
        self.until_logged(&format!("stream_ended {id}")).await;
        let text = std::fs::read_to_string(&self.log).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.find(|line| line["event"] == "stream_ended" && line["id"] == id).unwrap()
    }

    /// Opens a stream and reads its first event.
    async fn open(&self, id: &str, path: &str) -> TcpStream {
        let mut stream = self.request(id, path).await;
        read_event(&mut stream, 1).await;
        stream
    }

    fn term(&self) {
        self.signals.send(Noticed::Signal(signal("SIGTERM"))).unwrap();
    }
}

/// Reads until the event with this number, or a later one, has arrived.
async fn read_event(stream: &mut TcpStream, number: u64) {
    let mut text = String::new();
    let is_there = |text: &str| {
        let contents = text.split(['"', ' ', '\r', '\n']).filter_map(|word| word.strip_suffix("xxx"));
        contents.filter_map(|word| word.trim_end_matches('x').parse::<u64>().ok()).any(|seen| seen >= number)
    };
    let mut buffer = [0; 4096];
    while !is_there(&text) {
        let count = timeout(DEADLINE, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(count > 0, "the stream ended: {text}");
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
}

/// Returns the received part of a chunked response's body.
fn unchunked(answer: &str) -> String {
    let mut rest = answer.split_once("\r\n\r\n").unwrap().1;
    let mut body = String::new();
    while let Some((size, data)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&data[..size]);
        rest = &data[size + 2..];
    }
    body
}

fn with_fault(fault: StreamFault) -> Running {
    start_with(|config| config.streams.faults = vec![(fault, 1.0)])
}

#[test]
fn undisturbed_streams_complete() {
    local(async {
        let server = start(Habit::Exit);
        for path in SSE_PATHS {
            let answer = server.get(path, &format!("{path}?length=20ms")).await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(LAST_CHUNK), "{answer}");
            assert!(answer.contains("content-type: text/event-stream"), "{answer}");
            let body = unchunked(&answer);
            assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
            let entry = server.stream_entry(path).await;
            assert_eq!([&entry["end"], &entry["path"]], ["complete", path]);
            assert_eq!(entry["bytes"], body.len());
            assert_eq!(entry["events"], body.matches("\n\n").count());
            assert!(entry["last_event"].as_u64() > Some(1), "{body}");
            assert_eq!(entry["last_event"], body.matches(FILLER).count());
            assert_eq!(entry["length_ns"], 20_000_000);
            assert_eq!(entry["after_stop_signal"], false);
            assert!(server.events().contains(&format!("answered {path}")));
        }
        server.task.abort();
    });
}

#[test]
fn post_request_takes_length_from_header() {
    local(async {
        let server = start_with(|config| config.streams.length = "1000h".parse().unwrap());
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nrolldrop-id: a-1\r\nrolldrop-length: 3ms\r\n\
                    content-length: 15\r\nconnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        server.until_logged("received a-1").await;
        stream.write_all(br#"{"stream":true}"#).await.unwrap();
        assert!(unchunked(&answer_of(stream).await).contains(r#""finish_reason":"stop""#));
        assert_eq!(server.stream_entry("a-1").await["length_ns"], 3_000_000);
        server.task.abort();
    });
}

#[test]
fn download_uses_configured_framing() {
    local(async {
        for framing in StreamFraming::ALL {
            let server = start_with(|config| config.streams.framing = *framing);
            let answer = server.get("a-1", "/download?length=20ms").await;
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            let body = match framing {
                StreamFraming::Chunked => {
                    assert!(
                        head.contains("transfer-encoding: chunked") && body.ends_with(LAST_CHUNK),
                        "{answer}"
                    );
                    unchunked(&answer)
                }
                StreamFraming::CloseDelimited => {
                    assert!(
                        !head.contains("transfer-encoding") && !head.contains("content-length"),
                        "{head}"
                    );
                    assert!(head.contains("connection: close"), "{head}");
                    body.to_owned()
                }
                StreamFraming::ContentLength => {
                    assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
                    body.to_owned()
                }
            };
            let entry = server.stream_entry("a-1").await;
            assert_eq!(entry["end"], "complete", "{framing}");
            assert_eq!(entry["bytes"], body.len(), "{framing}");
            assert_eq!(entry["events"], body.len() / 16, "{framing}");
            server.task.abort();
        }
    });
}

#[test]
fn non_transport_faults_end_response_properly() {
    local(async {
        let faults = [
            (StreamFault::Unfinished, "unfinished", "", false),
            (StreamFault::Abort, "aborted", r#""finish_reason":"abort""#, true),
            (StreamFault::ErrorEvent, "error_event", r#""code":"internal_error""#, false),
        ];
        for (fault, end, shown, is_done) in faults {
            let server = with_fault(fault);
            for path in SSE_PATHS {
                let answer = server.get(path, &format!("{path}?length=5ms")).await;
                let body = unchunked(&answer);
                assert!(answer.ends_with(LAST_CHUNK) && body.contains(shown), "{fault}: {answer}");
                assert_eq!(body.contains("data: [DONE]"), is_done, "{fault}: {body}");
                let entry = server.stream_entry(path).await;
                assert_eq!(entry["end"], end);
                assert_eq!(entry["bytes"], body.len());
                assert_eq!(entry["events"], body.matches("\n\n").count());
            }
            server.task.abort();
        }
    });
}

#[test]
fn cut_streams_lack_last_chunk() {
    local(async {
        for framing in StreamFraming::ALL {
            let server = start_with(|config| {
                config.streams.framing = *framing;
                config.streams.faults = vec![(StreamFault::CutFin, 1.0)];
            });
            for path in SSE_PATHS.into_iter().chain(["/download"]) {
                let answer = server.get(path, &format!("{path}?length=20ms")).await;
                assert!(answer.contains("1xxxxxxxxxxxxxxx"), "{answer}");
                assert!(!answer.contains("[DONE]") && !answer.ends_with(LAST_CHUNK), "{answer}");
                let entry = server.stream_entry(path).await;
                assert_eq!(entry["end"], "cut_fin");
                assert_eq!(entry["events"], answer.matches(FILLER).count(), "{framing}: {answer}");
                assert!(server.events().contains(&format!("aborted {path}")));
            }
            server.task.abort();
        }
    });
}

#[test]
fn connection_reset_reaches_client() {
    local(async {
        let server = with_fault(StreamFault::CutRst);
        for path in SSE_PATHS.into_iter().chain(["/download"]) {
            let mut stream = server.request(path, &format!("{path}?length=5ms")).await;
            let error = timeout(DEADLINE, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(server.stream_entry(path).await["end"], "cut_rst");
        }
        server.task.abort();
    });
}

#[test]
fn stalled_stream_waits_for_client() {
    local(async {
        let server = with_fault(StreamFault::Stall);
        let stalled = server.open("a-1", "/events").await;
        server.until_logged("stream_stalled a-1").await;
        assert!(!server.events().contains(&"stream_ended a-1".to_owned()));
        drop(stalled);
        let entry = server.stream_entry("a-1").await;
        assert_eq!([&entry["end"], &entry["events"]], [&Value::from("stalled"), &Value::from(1)]);
        server.task.abort();
    });
}

#[test]
fn disconnected_client_is_logged() {
    local(async {
        let server = start(Habit::Exit);
        drop(server.open("a-1", &format!("/events?{ENDLESS}")).await);
        assert_eq!(server.stream_entry("a-1").await["end"], "client_gone");
        server.task.abort();
    });
}

#[test]
fn finish_habit_lets_streams_complete() {
    local(async {
        let mut server = start_with(|config| {
            config.on_stop = Habit::Finish;
            // More than the socket buffers hold, so the stream cannot end before the client reads.
            config.streams.event_bytes = 32 << 20;
        });
        let stream = server.request("a-1", "/events").await;
        server.until_logged("received a-1").await;
        server.term();
        server.until_logged("stopped_accepting").await;
        assert!(unchunked(&answer_of(stream).await).ends_with("data: [DONE]\n\n"));
        server.ended().await;
        let entry = server.stream_entry("a-1").await;
        assert_eq!(
            [&entry["end"], &entry["after_stop_signal"]],
            [&Value::from("complete"), &Value::from(true)]
        );
        assert_eq!(server.events().last().unwrap(), "exiting");
    });
}

#[test]
fn stop_signal_cuts_open_streams() {
    local(async {
        for wait in [Duration::ZERO, Duration::from_millis(20)] {
            let mut server = start_with(|config| {
                config.on_stop = Habit::Finish;
                config.streams.on_stop = StreamStopHabit::CutAfter(wait);
            });
            let mut open = Vec::new();
            for path in SSE_PATHS.into_iter().chain(["/download"]) {
                open.push((path, server.open(path, &format!("{path}?{ENDLESS}")).await));
            }
            server.term();
            server.ended().await;
            for (path, stream) in open {
                let rest = answer_of(stream).await;
                assert!(!rest.contains("[DONE]") && !rest.ends_with(LAST_CHUNK), "{rest}");
                let entry = server.stream_entry(path).await;
                assert_eq!(
                    [&entry["end"], &entry["after_stop_signal"]],
                    [&Value::from("cut_at_sigterm"), &Value::from(true)]
                );
            }
        }
    });
}

#[test]
fn cut_after_habit_waits_for_delay() {
    local(async {
        let server = start_with(|config| {
            config.on_stop = Habit::Finish;
            config.streams.on_stop = StreamStopHabit::CutAfter(Duration::from_secs(3600));
        });
        let mut stream = server.open("a-1", &format!("/events?{ENDLESS}")).await;
        server.term();
        server.until_logged("stopped_accepting").await;
        // The events sent before the signal fit into the socket's buffers; this many do not.
        read_event(&mut stream, 20).await;
        assert!(!server.events().contains(&"stream_ended a-1".to_owned()));
        server.task.abort();
    });
}

#[test]
fn goodbye_habit_ends_streams_with_error_event() {
    local(async {
        let mut server = start_with(|config| {
            config.on_stop = Habit::Finish;
            config.streams.on_stop = StreamStopHabit::Goodbye;
        });
        let mut open = Vec::new();
        for path in SSE_PATHS.into_iter().chain(["/download"]) {
            open.push((path, server.open(path, &format!("{path}?{ENDLESS}")).await));
        }
        server.term();
        server.ended().await;
        for (path, stream) in open {
            let rest = answer_of(stream).await;
            let is_told = rest.contains(r#""code":"shutting_down""#) && rest.ends_with(LAST_CHUNK);
            assert!(!rest.contains("[DONE]"), "{rest}");
            assert_eq!(is_told, path != "/download", "{rest}");
            let end = if is_told { "goodbye" } else { "cut_at_sigterm" };
            assert_eq!(server.stream_entry(path).await["end"], end);
        }
    });
}

#[test]
fn exit_habit_logs_cut_streams_first() {
    local(async {
        let mut server = start(Habit::Exit);
        let stream = server.open("a-1", &format!("/events?{ENDLESS}")).await;
        server.term();
        server.ended().await;
        assert!(!answer_of(stream).await.ends_with(LAST_CHUNK));
        assert_eq!(server.stream_entry("a-1").await["end"], "cut_at_sigterm");
        let events = server.events();
        assert_eq!(events[events.len() - 3..], ["stream_ended a-1", "aborted a-1", "exiting"]);
    });
}

#[test]
fn stop_signal_ends_stalled_and_later_streams() {
    local(async {
        let server = start_with(|config| {
            config.on_stop = Habit::Drain;
            config.drain_for = Duration::from_secs(3600);
            config.streams.faults = vec![(StreamFault::Stall, 1.0)];
            config.streams.on_stop = StreamStopHabit::Goodbye;
        });
        let stalled = server.open("a-1", "/events").await;
        server.until_logged("stream_stalled a-1").await;
        server.term();
        // A stalled stream sends nothing more, not even the error event.
        assert!(!answer_of(stalled).await.contains("shutting_down"));
        assert_eq!(server.stream_entry("a-1").await["end"], "cut_at_sigterm");
        let later = server.get("a-2", &format!("/events?{ENDLESS}")).await;
        assert!(later.contains("1xxx") && later.contains("shutting_down"), "{later}");
        assert_eq!(server.stream_entry("a-2").await["end"], "goodbye");
        server.task.abort();
    });
}

#[test]
fn same_seed_reproduces_served_stream_lengths() {
    local(async {
        let lengths = async |seed| {
            let server = start_with(|config| {
                config.streams.length = "lognormal:1ms,1.0".parse().unwrap();
                config.streams.seed = seed;
            });
            let mut lengths = Vec::new();
            for id in ["a-1", "a-2", "a-3", "a-4"] {
                server.get(id, "/events").await;
                lengths.push(server.stream_entry(id).await["length_ns"].as_u64().unwrap());
            }
            server.task.abort();
            lengths
        };
        let first = lengths(5).await;
        assert_eq!(first, lengths(5).await);
        assert_ne!(first, lengths(6).await);
    });
}

#[test]
fn invalid_requests_get_no_stream() {
    local(async {
        let server = start_with(|config| config.fail_share = 0.5);
        let status = |answer: String| answer["HTTP/1.1 ".len()..][..3].to_owned();
        assert_eq!(status(server.get("a-1", "/events?length=soon").await), "400");
        assert_eq!(status(server.get("a-2", "/events").await), "500");
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"PUT /download HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        assert_eq!(status(answer_of(stream).await), "405");
        assert!(server.events().iter().all(|event| !event.starts_with("stream_ended")));
        server.task.abort();
    });
}

#[test]
fn hundreds_of_streams_share_one_thread() {
    local(async {
        let mut server = start_with(|config| {
            config.on_stop = Habit::Finish;
            config.streams.on_stop = StreamStopHabit::Goodbye;
        });
        let mut open = Vec::new();
        for number in 0..300 {
            open.push(server.open(&format!("a-{number}"), "/events?length=1000h").await);
        }
        server.term();
        server.ended().await;
        for stream in open {
            assert!(answer_of(stream).await.contains("shutting_down"));
        }
        let goodbyes = server.events().iter().filter(|event| event.starts_with("stream_ended")).count();
        assert_eq!(goodbyes, 300);
    });
}

//! Tests of the server's habits over real connections; the signals come from the test.

mod stream_ends;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};

use super::*;
use crate::{LogTarget, SampleStreamSettings, StreamFraming, StreamStopHabit};

const DEADLINE: Duration = Duration::from_secs(60);

struct Running {
    address: SocketAddr,
    signals: mpsc::UnboundedSender<Noticed>,
    task: JoinHandle<()>,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

fn signal(name: &str) -> StopSignal {
    name.parse().unwrap()
}

fn config(listen: SocketAddr, on_stop: Habit, log: PathBuf) -> WorkloadConfig {
    WorkloadConfig {
        listen,
        listen_after: Duration::ZERO,
        on_stop,
        on_signal: BTreeMap::from([(signal("SIGUSR1"), Habit::Finish)]),
        drain_for: Duration::from_millis(200),
        idle_timeout: Duration::from_secs(30),
        stop_work: Duration::ZERO,
        response_time: Duration::ZERO,
        fail_share: 0.0,
        body_bytes: None,
        ready_after: Duration::ZERO,
        streams: SampleStreamSettings {
            length: "fixed:0s".parse().unwrap(),
            gap: "fixed:1ms".parse().unwrap(),
            event_bytes: 16,
            seed: 1,
            faults: Vec::new(),
            framing: StreamFraming::Chunked,
            on_stop: StreamStopHabit::Finish,
        },
        ask_api_every: None,
        log: Some(LogTarget::File(log)),
        pod_name: Some("web-1".to_owned()),
    }
}

/// Starts a server on the current thread's local set.
fn start(on_stop: Habit) -> Running {
    start_with(|config| config.on_stop = on_stop)
}

fn start_with(change: impl FnOnce(&mut WorkloadConfig)) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log.jsonl");
    let mut config = config(([127, 0, 0, 1], 0).into(), Habit::Exit, log.clone());
    change(&mut config);
    let shared = Rc::new(ServerState::open(&config, Box::new(|| 0)).unwrap());
    let listener = listen_logged(&config, &shared.log).unwrap();
    let address = listener.local_addr().unwrap();
    let (signals, mut received) = mpsc::unbounded_channel();
    let next_signal = async move || match received.recv().await {
        Some(noticed) => noticed,
        None => std::future::pending().await,
    };
    let task = tokio::task::spawn_local(async move { serve(listener, next_signal, shared, &config).await });
    Running { address, signals, task, log, _dir: dir }
}

impl Running {
    /// Sends a request and leaves the connection open.
    async fn request(&self, id: &str, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nrolldrop-id: {id}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn get(&self, id: &str, path: &str) -> String {
        answer_of(self.request(id, path).await).await
    }

    fn events(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let line = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let subject = line.get("id").or(line.get("name")).and_then(Value::as_str);
            format!("{} {}", line["event"].as_str().unwrap(), subject.unwrap_or_default()).trim().to_owned()
        };
        text.lines().map(line).collect()
    }

    async fn until_logged(&self, event: &str) {
        timeout(DEADLINE, async {
            while !self.events().contains(&event.to_owned()) {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
    }

    async fn ended(&mut self) {
        timeout(DEADLINE, &mut self.task).await.unwrap().unwrap();
    }
}

/// Reads everything until the connection is closed or reset.
async fn answer_of(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

/// Runs a test on one thread, as the server does.
fn local(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn exit_habit_aborts_requests_in_flight() {
    local(async {
        let mut server = start(Habit::Exit);
        let answer = server.get("a-1", "/").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("rolldrop-pod: web-1"), "{answer}");
        let in_flight = server.request("a-2", "/slow?ms=100000").await;
        server.until_logged("received a-2").await;
        server.signals.send(Noticed::Signal(signal("SIGTERM"))).unwrap();
        server.ended().await;
        assert_eq!(answer_of(in_flight).await, "");
        assert!(TcpStream::connect(server.address).await.is_err());
        let events = server.events();
        assert_eq!(
            events[1..],
            ["received a-1", "answered a-1", "received a-2", "signal SIGTERM", "aborted a-2", "exiting"]
        );
    });
}

#[test]
fn idle_connection_closes_after_timeout() {
    local(async {
        let server = start_with(|config| config.idle_timeout = Duration::from_millis(50));
        let mut kept = TcpStream::connect(server.address).await.unwrap();
        kept.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        // The server closes the connection, although neither side has asked for it.
        let answer = timeout(DEADLINE, answer_of(kept)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("connection: close"), "{answer}");
    });
}

#[test]
fn finish_habit_answers_only_accepted_requests() {
    local(async {
        let mut server = start(Habit::Finish);
        let in_flight = server.request("a-1", "/slow?ms=200").await;
        server.until_logged("received a-1").await;
        server.signals.send(Noticed::Signal(signal("SIGTERM"))).unwrap();
        server.until_logged("stopped_accepting").await;
        assert!(TcpStream::connect(server.address).await.is_err());
        assert!(answer_of(in_flight).await.starts_with("HTTP/1.1 200"));
        server.ended().await;
        assert!(server.events().contains(&"answered a-1".to_owned()));
    });
}

#[test]
fn drain_habit_answers_with_connection_close() {
    local(async {
        let mut server = start(Habit::Drain);
        assert!(server.get("a-1", "/readyz").await.starts_with("HTTP/1.1 200"));
        server.signals.send(Noticed::Signal(signal("SIGTERM"))).unwrap();
        server.until_logged("signal SIGTERM").await;
        // Two connections made while the server keeps serving: one sends a request now, the other only after the
        // listener was closed.
        let late = TcpStream::connect(server.address).await.unwrap();
        let answer = server.get("a-2", "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("connection: close"), "{answer}");
        server.until_logged("stopped_accepting").await;
        let mut late = late;
        late.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nrolldrop-id: a-3\r\n\r\n").await.unwrap();
        let answer = answer_of(late).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
        server.ended().await;
        assert_eq!(server.events().last().unwrap(), "exiting");
    });
}

#[test]
fn close_idle_habit_resets_connection_with_unread_request() {
    local(async {
        let mut server = start(Habit::CloseIdle);
        let keep = |id: &str| format!("GET / HTTP/1.1\r\nhost: x\r\nrolldrop-id: {id}\r\n\r\n");
        let mut idle = TcpStream::connect(server.address).await.unwrap();
        idle.write_all(keep("a-1").as_bytes()).await.unwrap();
        server.until_logged("answered a-1").await;
        while !matches!(idle.try_read(&mut [0; 1024]), Ok(count) if count > 0) {
            idle.readable().await.unwrap();
        }
        let in_flight = server.request("a-2", "/slow?ms=100").await;
        server.until_logged("received a-2").await;
        // Both are sent before the server gets its turn on this thread.
        assert!(idle.try_write(keep("a-3").as_bytes()).is_ok());
        server.signals.send(Noticed::Signal(signal("SIGTERM"))).unwrap();
        let end = idle.read(&mut [0; 1024]).await.unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
        let answer = answer_of(in_flight).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
        assert!(server.get("a-4", "/").await.starts_with("HTTP/1.1 200"), "it keeps serving");
        server.ended().await;
        let events = server.events();
        assert!(events.contains(&"answered a-4".to_owned()), "{events:?}");
        assert!(!events.iter().any(|event| event.ends_with("a-3")), "{events:?}");
    });
}

#[test]
fn ignore_habit_only_logs_signal() {
    local(async {
        let server = start(Habit::Ignore);
        server.signals.send(Noticed::Signal(signal("SIGTERM"))).unwrap();
        server.until_logged("signal SIGTERM").await;
        assert!(server.get("a-1", "/").await.starts_with("HTTP/1.1 200"));
        server.task.abort();
    });
}

#[test]
fn each_signal_triggers_its_habit() {
    local(async {
        let mut server = start(Habit::Exit);
        server.signals.send(Noticed::Signal(signal("SIGHUP"))).unwrap();
        server.signals.send(Noticed::Continued).unwrap();
        server.until_logged("continued").await;
        let in_flight = server.request("a-1", "/slow?ms=200").await;
        server.until_logged("received a-1").await;
        // This signal is configured to make the server finish.
        server.signals.send(Noticed::Signal(signal("SIGUSR1"))).unwrap();
        assert!(answer_of(in_flight).await.starts_with("HTTP/1.1 200"));
        server.ended().await;
        let events = server.events();
        assert_eq!(events[1..3], ["signal SIGHUP", "continued"]);
        assert!(events.contains(&"signal SIGUSR1".to_owned()), "{events:?}");
    });
}

#[test]
fn stop_signal_ends_wait_before_listening() {
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.jsonl");
        let mut config = config(([127, 0, 0, 1], 0).into(), Habit::Drain, log);
        config.listen_after = Duration::from_secs(1000);
        let shared = Rc::new(ServerState::open(&config, Box::new(|| 0)).unwrap());
        // The first signal is ignored by default.
        let mut signals = [signal("SIGTERM"), signal("SIGHUP")].map(Noticed::Signal).to_vec();
        let ended = wait_to_listen(async || signals.pop().unwrap(), &shared, &config).await;
        assert_eq!(ended, ListenWait::Stopped);
        let text = std::fs::read_to_string(dir.path().join("log.jsonl")).unwrap();
        assert!(
            text.contains("SIGTERM") && text.contains("exiting") && !text.contains("listening"),
            "{text}"
        );
    });
}

#[test]
fn fail_share_never_applies_to_probes() {
    local(async {
        let server = start_with(|config| config.fail_share = 0.25);
        let mut statuses = Vec::new();
        for _ in 0..8 {
            statuses.push(server.get("a-1", "/").await["HTTP/1.1 ".len()..][..3].to_owned());
            assert!(server.get("a-2", "/readyz").await.starts_with("HTTP/1.1 200"));
        }
        assert_eq!(statuses, ["200", "200", "200", "500", "200", "200", "200", "500"]);
        server.task.abort();
    });
}

#[test]
fn answer_is_logged_after_full_write() {
    local(async {
        let server = start(Habit::Exit);
        // More than the socket buffers hold, and the client does not read it.
        let stuck = server.request("a-1", "/stream?bytes=67108864&ms=0").await;
        let gone = server.request("a-2", "/slow?ms=100000").await;
        server.until_logged("received a-1").await;
        server.until_logged("received a-2").await;
        drop(gone);
        server.until_logged("aborted a-2").await;
        assert!(!server.events().contains(&"answered a-1".to_owned()));
        assert!(answer_of(stuck).await.len() > 67_108_864);
        server.until_logged("answered a-1").await;
        server.task.abort();
    });
}

#[test]
fn taken_address_yields_clear_error() {
    local(async {
        let server = start(Habit::Exit);
        let config = config(server.address, Habit::Exit, server.log.clone());
        let shared = Rc::new(ServerState::open(&config, Box::new(|| 0)).unwrap());
        let error = listen_logged(&config, &shared.log).err().unwrap();
        assert!(error.to_string().contains("is in use by another process"), "{error}");
        server.task.abort();
    });
}

//! A complete proxy, from ports to report, between hostile clients and a hostile app.
//!
//! An input determines the session, step by step (`script`). Both ends send HTTP/1, HTTP/2 or anything else, in pieces;
//! they stop reading, half-close and reset. The app dies, the pod terminates, and row readers connect and disconnect.
//! After each step the proxy gets time to settle; then the following must be true:
//!
//! - each end has received what the other end sent, in order, and finally all of it (`pair`);
//! - no more is in flight, recorded or held than the budget allows, and actual memory use confirms it;
//! - there are no more rows than requests allowed by the protocols (`rules`), and one row for each request that was
//!   answered properly;
//! - finally, nothing is held, every connection is closed, and the proxy returns in time.
//!
//! A session uses one thread, a paused clock, and loopback connections, so an input always has the same effect. The
//! sockets are real, because the kernel's behaviour on close and reset is half of what a relay has to get right.

mod pair;
mod rules;
mod script;
mod session_checks;

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};

use self::pair::Pair;
use self::script::{ConversationSide, InputScript, MOST_PAIRS, SessionStep, good_exchange};
use super::super::{
    Budget, DRAIN_LIMIT, PodHeader, Proxy, ProxyConfig, ProxyReport, ProxyState, TrafficMode,
};
use rolldrop_record::Clock;
use rolldrop_record::wire::COLLECTOR_HEADER;
use rolldrop_testing::Meter;

/// Maximum number of connections to the admin port.
const MOST_ASKERS: usize = 4;
/// Maximum number of rounds of reading both ends until nothing more arrives.
const MOST_ROUNDS: usize = 40;
/// Time on the proxy's clock within which every connection must finish after both ends have closed.
const ALL_ENDED: Duration = Duration::from_secs(120);

/// Environment variable that makes the session print each step before executing it.
const SHOW_STEPS: &str = "FUZZ_STEPS";

/// Runs the session described by an input, and returns the number of steps.
pub(super) fn run(input: &[u8]) -> usize {
    let before = Meter::held();
    let steps = once(input);
    let left = Meter::held().saturating_sub(before);
    if left > 0 {
        // Memory that a process allocates only once is not allocated again in a second run.
        let before = Meter::held();
        once(input);
        let left = Meter::held().saturating_sub(before);
        assert!(left == 0, "{left} bytes are still held after the proxy has exited");
    }
    steps
}

/// Returns the input of the session with this number. Each number has a different input.
pub(super) fn numbered(number: u32) -> [u8; 4] {
    // Multiplication by an odd number spreads the bits of small numbers.
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

fn once(input: &[u8]) -> usize {
    let panics = watch_panics();
    let shows = std::env::var_os(SHOW_STEPS).is_some();
    let runtime = Builder::new_current_thread().enable_io().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let steps = runtime.block_on(async {
        let mut script = InputScript::new(input);
        let mut session = FuzzedSession::begin(&mut script);
        while let Some(step) = script.step(session.pairs.len()) {
            if shows {
                eprintln!("{step}");
            }
            session.take(step).await;
            session.settle().await;
            session.check();
        }
        session.end().await;
        script.steps()
    });
    drop(runtime);
    // The runtime catches panics in connection tasks.
    assert!(watch_panics() == panics, "a proxy task panicked");
    steps
}

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of panics on this thread so far.
fn watch_panics() -> usize {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
    PANICS.get()
}

/// Returns an address unique to this session, because the ports of earlier sessions stay occupied for a while.
fn address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if cfg!(not(target_os = "linux")) {
        return SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    }
    let [_, a, b, c] = (NEXT.fetch_add(1, Ordering::Relaxed) % 0x00fe_0000 + 0x0001_0000).to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(127, a, b, c), 0))
}

/// Returns either a budget that a few steps exhaust, or a generous one.
fn budget(choice: u8) -> Budget {
    let small = Budget {
        connections: 3,
        held_bytes: 64 * 1024,
        requests_per_connection: 8,
        requests: 16,
        rows: 64,
        unanswered_rows: 32,
        ..Budget::DEFAULT
    };
    match choice % 4 {
        0 | 1 => small,
        2 => Budget { connections: MOST_PAIRS, held_bytes: 0, ..small },
        _ => Budget { rows: 1000, unanswered_rows: 500, held_bytes: 1 << 20, ..Budget::DEFAULT },
    }
}

struct FuzzedSession {
    config: ProxyConfig,
    data: SocketAddr,
    admin: SocketAddr,
    shared: Arc<ProxyState>,
    app: Option<TcpListener>,
    pairs: Vec<Pair>,
    /// Number of pairs that the app has accepted.
    accepted: usize,
    askers: Vec<TcpStream>,
    stop: Option<oneshot::Sender<()>>,
    hurry: Option<oneshot::Sender<()>>,
    stopped: Option<Instant>,
    report: JoinHandle<ProxyReport>,
    /// Bytes in use before the proxy started.
    before: usize,
}

impl FuzzedSession {
    fn begin(script: &mut InputScript<'_>) -> Self {
        let choice = script.byte();
        let address = address();
        let app = TcpListener::bind(address).expect("a free port");
        app.set_nonblocking(true).expect("a socket");
        let upstream = app.local_addr().expect("an address");
        let config = ProxyConfig {
            listen: address,
            admin: address,
            mode: if choice & 0x70 == 0x70 { TrafficMode::Tcp } else { TrafficMode::Http },
            pod_header: if choice & 0x0c == 0x0c { PodHeader::Added } else { PodHeader::Omitted },
            budget: budget(choice),
            ..ProxyConfig::bare(upstream)
        };
        let (pairs, askers) = (Vec::with_capacity(MOST_PAIRS), Vec::with_capacity(MOST_ASKERS));
        let before = Meter::held();
        Meter::peak();
        let proxy = Proxy::bind(config.clone(), Clock::start()).expect("free ports");
        let (data, admin, shared) = (proxy.local_addr(), proxy.admin_addr(), proxy.shared.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let (hurry, hurried) = oneshot::channel::<()>();
        let report = tokio::spawn(proxy.run(
            async {
                let _ = stopped.await;
            },
            async {
                let _ = hurried.await;
            },
        ));
        let (stop, hurry) = (Some(stop), Some(hurry));
        Self {
            config,
            data,
            admin,
            shared,
            app: Some(app),
            pairs,
            accepted: 0,
            askers,
            stop,
            hurry,
            stopped: None,
            report,
            before,
        }
    }

    async fn take(&mut self, step: SessionStep) {
        match step {
            SessionStep::Connect => self.connect(),
            SessionStep::Say(side, pair, bytes, cut) => {
                self.pairs[pair].is_clean = false;
                let (first, second) = bytes.split_at(cut);
                self.pairs[pair].say(side, first);
                if cut > 0 {
                    self.settle().await;
                }
                self.pairs[pair].say(side, second);
            }
            SessionStep::Close(side, pair) => {
                let pair = &mut self.pairs[pair];
                pair.is_clean = false;
                pair.end(side).close();
            }
            SessionStep::Reset(side, pair) => {
                let pair = &mut self.pairs[pair];
                if pair.end(side).is_connected() {
                    (pair.is_clean, pair.is_disturbed) = (false, true);
                    pair.end(side).reset();
                }
            }
            SessionStep::Stall(side, pair) => {
                let stalls = &mut self.pairs[pair].end(side).stalls;
                *stalls = !*stalls;
            }
            SessionStep::Exchange(pair, stream) => self.exchange(pair, stream).await,
            SessionStep::Wait(time) => self.wait(time).await,
            SessionStep::AppDies => self.app_dies(),
            SessionStep::Drain => self.stop(),
            SessionStep::Hurry => _ = self.hurry.take().map(|hurry| hurry.send(())),
            SessionStep::Ask(path) => self.ask(path),
            SessionStep::Collect => {
                if let Some(asker) = self.askers.last_mut() {
                    let _ = asker.read(&mut [0; 16 * 1024]);
                }
            }
            SessionStep::BreakOff => _ = self.askers.pop(),
        }
    }

    fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
            self.stopped = Some(Instant::now());
        }
    }

    /// Returns true if the proxy may be about to close the connections, or has done so.
    fn is_ending(&self) -> bool {
        let is_late = |at: Instant| at.elapsed() > DRAIN_LIMIT / 2;
        self.stopped.is_some_and(|at| is_late(at) || self.hurry.is_none() || self.app.is_none())
    }

    fn connect(&mut self) {
        if self.pairs.len() == MOST_PAIRS {
            return;
        }
        // The listener is gone once the proxy has finished.
        let Ok(client) = TcpStream::connect(self.data) else { return };
        let (_, _) = (client.set_nonblocking(true), client.set_nodelay(true));
        let before = Meter::held();
        let mut pair = Pair::new(client);
        pair.is_disturbed = self.app.is_none();
        self.pairs.push(pair);
        self.before += Meter::held() - before;
        Meter::peak();
    }

    /// Sends a valid request and its response, and checks that both arrive.
    async fn exchange(&mut self, pair: usize, stream: Option<u32>) {
        let has_room = self.shared.in_flight.count() < self.config.budget.requests;
        let is_ending = self.is_ending();
        let at = pair;
        let pair = &mut self.pairs[at];
        let stalls = pair.client.stalls || pair.app.stalls;
        let is_ready = pair.is_clean && !pair.is_disturbed && !stalls && pair.app.is_connected();
        if !is_ready || !has_room || is_ending || pair.client.ended.is_some() || pair.app.ended.is_some() {
            return;
        }
        let (ask, answer) = good_exchange(stream, pair.answered == 0);
        pair.say(ConversationSide::Client, &ask);
        self.settle().await;
        self.pairs[at].say(ConversationSide::App, &answer);
        self.settle().await;
        let pair = &mut self.pairs[at];
        let has_come =
            pair.app.got.len() == pair.client.sent.len() && pair.client.got.len() >= pair.app.sent.len();
        assert!(has_come, "a good request or its response did not arrive");
        pair.answered += 1;
    }

    async fn wait(&mut self, time: Duration) {
        // Once the app has closed, the proxy also closes a client that is silent for a while.
        for pair in self.pairs.iter_mut().filter(|pair| pair.app.has_closed && time.as_millis() > 100) {
            pair.is_disturbed = true;
        }
        sleep(time).await;
    }

    fn app_dies(&mut self) {
        // Clients not yet connected to the app never will be.
        for pair in self.pairs.iter_mut().filter(|pair| !pair.is_over()) {
            (pair.is_clean, pair.is_disturbed) = (false, true);
            pair.app.reset();
        }
        self.app = None;
    }

    fn ask(&mut self, path: &str) {
        if self.askers.len() == MOST_ASKERS {
            return;
        }
        let Ok(mut asker) = TcpStream::connect(self.admin) else { return };
        let _ = asker.set_nonblocking(true);
        let _ = write!(asker, "GET {path} HTTP/1.1\r\nhost: a\r\n{COLLECTOR_HEADER}: true\r\n\r\n");
        self.askers.push(asker);
    }

    /// Lets the proxy make all possible progress, reading at both ends.
    async fn settle(&mut self) {
        for _ in 0..MOST_ROUNDS {
            for _ in 0..3 {
                yield_now().await;
            }
            sleep(Duration::from_millis(1)).await;
            if !self.listen() {
                return;
            }
        }
    }

    fn listen(&mut self) -> bool {
        let mut any = false;
        while let Some(Ok((socket, _))) = self.app.as_ref().map(TcpListener::accept) {
            let (_, _) = (socket.set_nonblocking(true), socket.set_nodelay(true));
            // App connections arrive in client order; one beyond the last client was a readiness check.
            if let Some(pair) = self.pairs.get_mut(self.accepted) {
                pair.accepted(socket);
                self.accepted += 1;
            }
            any = true;
        }
        let line = self.shared.pod_header.as_ref().map(|header| &*header.line);
        for pair in &mut self.pairs {
            any |= pair.listen(line);
        }
        any
    }

    /// Finishes all conversations, and checks that nothing is left over.
    async fn end(mut self) {
        self.part().await;
        let has_ended = timeout(ALL_ENDED, async {
            while self.shared.open.count() > 0 {
                self.settle().await;
                sleep(Duration::from_millis(100)).await;
            }
        });
        let has_ended = has_ended.await.is_ok();
        assert!(has_ended, "{} connections did not close", self.shared.open.count());
        self.check_nothing_is_left();
        self.check_arrived();
        self.askers.clear();
        self.app = None;
        self.stop();
        let report = timeout(Duration::from_secs(3), &mut self.report).await;
        let report = report.expect("the proxy did not finish").expect("no panic");
        assert_eq!(report.counts.recorded, self.shared.journal.counts().recorded);
        self.check_nothing_is_left();
        self.check_rows();
    }

    /// Closes both ends of each conversation, and reads the remaining bytes.
    async fn part(&mut self) {
        for pair in &mut self.pairs {
            for side in [ConversationSide::Client, ConversationSide::App] {
                pair.end(side).stalls = false;
            }
        }
        self.settle().await;
        // Clients waiting for a place are served once others have left.
        for round in 0..2000 {
            for pair in &mut self.pairs {
                pair.client.close();
                pair.app.close();
            }
            self.settle().await;
            let waits = self.app.is_some() && self.accepted < self.pairs.len() && !self.report.is_finished();
            if !waits && self.pairs.iter().all(|pair| pair.is_over() || pair.is_disturbed || pair.is_refused)
            {
                break;
            }
            if self.report.is_finished() || self.app.is_none() && round > 10 {
                break;
            }
            if round > 20 {
                // The kernel reopens a closed window in real time, not on the paused clock.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // A conversation that was cut short has nothing more to wait for.
        for pair in &mut self.pairs {
            if pair.is_disturbed || pair.is_refused || self.app.is_none() {
                pair.client.reset();
                pair.app.reset();
            }
        }
        self.settle().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of sessions that the test runs; the fuzz target runs more.
    const SESSIONS: u32 = 300;

    #[test]
    fn fuzzed_sessions_end_without_leftovers() {
        for number in 0..SESSIONS {
            let result = std::panic::catch_unwind(|| run(&numbered(number)));
            assert!(result.is_ok(), "session {number}");
        }
    }
}

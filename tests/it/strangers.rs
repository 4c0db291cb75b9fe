//! Hostile clients against the recording proxy, under a sidecar's memory limit, while a normal client is served.
//! `scripts/proofs/hostile` is the long form, which includes nginx and HAProxy (docs/proofs.md).

mod app;
pub(crate) mod attacks;
mod memory;
mod subjects;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rolldrop_sidecar::Budget;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use self::attacks::{Attack, Client};
use self::memory::{Cgroup, LIMIT_BYTES, Memory};
use self::subjects::{Kind, Subject};

/// Maximum memory of the proxy itself.
const ANONYMOUS_BYTES: u64 = 128 * 1024 * 1024;
/// Time that a normal client waits for a response.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time until everything is released; the app gives idle clients 10 s.
const AFTERWARDS: Duration = Duration::from_secs(300);
const MIB: u64 = 1024 * 1024;

/// A simultaneous attack by many hostile clients of one kind.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    attack: Attack,
    clients: usize,
    /// Reaction of the client when its connection is closed: it reconnects, or keeps its side open.
    client: Client,
}

/// Attacks requested in issues and reviews.
const LOADS: [Load; 10] = [
    Load {
        name: "HEADERS on any stream, behind GOAWAY",
        attack: Attack::Streams,
        clients: 4,
        client: Client::Leaves,
    },
    Load { name: "unfinished heads of 1 MB", attack: Attack::LongHead, clients: 400, client: Client::Leaves },
    Load {
        name: "unfinished HEADERS frames of 1 MB",
        attack: Attack::LongFrame,
        clients: 400,
        client: Client::Leaves,
    },
    Load { name: "idle", attack: Attack::Idle, clients: 10_000, client: Client::Leaves },
    Load { name: "slow heads", attack: Attack::SlowHead, clients: 10_000, client: Client::Leaves },
    Load { name: "stalled readers", attack: Attack::StalledReader, clients: 10_000, client: Client::Leaves },
    Load {
        name: "pipelines that nobody reads",
        attack: Attack::Pipeline,
        clients: 10_000,
        client: Client::Leaves,
    },
    Load { name: "idle", attack: Attack::Idle, clients: 500, client: Client::Stays },
    Load { name: "stalled readers", attack: Attack::StalledReader, clients: 200, client: Client::Stays },
    Load { name: "slow heads", attack: Attack::SlowHead, clients: 2_000, client: Client::Stays },
];

/// Result of a load.
#[derive(Debug)]
struct Outcome {
    peak: Memory,
    kills: u64,
    served: u64,
    failed: u64,
    slowest: Duration,
    descriptors: usize,
    /// Number of additional descriptors at the end of the load, with the clients still connected.
    left: usize,
    /// Time from when the clients stopped until there were as many descriptors as before.
    after: Option<Duration>,
}

/// Runs a client that repeatedly requests something small, on a new connection each time.
async fn normal(to: SocketAddr, stops: Arc<AtomicBool>) -> (u64, u64, Duration) {
    let (mut served, mut failed, mut slowest) = (0, 0, Duration::ZERO);
    while !stops.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match timeout(PATIENCE, ask(to)).await {
            Ok(true) => served += 1,
            _ => failed += 1,
        }
        slowest = slowest.max(begun.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    (served, failed, slowest)
}

/// Returns true if a request is answered.
async fn ask(to: SocketAddr) -> bool {
    let answer = async {
        let mut stream = TcpStream::connect(to).await?;
        stream.write_all(b"GET /small HTTP/1.1\r\nhost: app\r\nconnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    answer.await.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200 "))
}

/// Puts a subject under load, and watches it until it has released everything.
async fn attack(kind: Kind, load: Load, lasts: Duration) -> Result<Outcome, String> {
    let cgroup = Cgroup::new()?;
    let (_app, upstream) = app::start().await;
    let subject = Subject::start(kind, upstream, &cgroup).await?;
    let before = subject.descriptors();
    let stops = Arc::new(AtomicBool::new(false));
    let normal = tokio::spawn(normal(subject.http1, stops.clone()));
    let end = Instant::now() + lasts;
    let to = if load.attack.is_http2() { subject.http2 } else { subject.http1 };
    let mut clients = JoinSet::new();
    for _ in 0..load.clients {
        clients.spawn(async move {
            // A client whose connection is closed reconnects.
            while Instant::now() < end {
                let _ = load.attack.run(to, end, load.client).await;
                if load.client == Client::Stays {
                    return;
                }
                sleep(Duration::from_millis(100)).await;
            }
        });
    }
    let (mut peak, mut descriptors) = (Memory::default(), 0);
    let mut left = 0;
    while !clients.is_empty() {
        if Instant::now() < end {
            left = subject.descriptors().saturating_sub(before);
        }
        peak = peak.max(cgroup.memory());
        descriptors = descriptors.max(subject.descriptors());
        let _ = timeout(Duration::from_millis(50), clients.join_next()).await;
    }
    stops.store(true, Ordering::Relaxed);
    let (served, failed, slowest) = normal.await.map_err(|error| error.to_string())?;
    let since = Instant::now();
    let mut after = None;
    while after.is_none() && since.elapsed() < AFTERWARDS {
        if subject.descriptors() <= before {
            after = Some(since.elapsed());
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(Outcome { peak, kills: cgroup.kills(), served, failed, slowest, descriptors, left, after })
}

fn row(kind: Kind, load: Load, outcome: &Result<Outcome, String>) -> String {
    let mut row = format!("| {} | {} | {} | ", load.name, load.clients, kind.name());
    let _ = match outcome {
        Ok(outcome) => write!(
            row,
            "{} | {} | {} | {} | {} of {} | {:.2} s | {} | {} | {} |",
            outcome.peak.anonymous / MIB,
            outcome.peak.sockets / MIB,
            outcome.peak.all / MIB,
            if outcome.kills > 0 { "yes" } else { "no" },
            outcome.failed,
            outcome.failed + outcome.served,
            outcome.slowest.as_secs_f64(),
            outcome.descriptors,
            outcome.left,
            outcome.after.map_or("not in 300 s".to_owned(), |after| format!("{:.1} s", after.as_secs_f64())),
        ),
        Err(why) => write!(row, "not run: {why} | | | | | | | | |"),
    };
    row
}

/// Raises the open-file limit of this process and its children to the maximum; returns the limit.
pub(crate) fn files() -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let hard = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard.min(65_536));
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_or(0, |()| usize::try_from(hard).expect("a number"))
}

impl Kind {
    /// Returns the maximum number of clients, given that each needs a descriptor here, and each one that gets through
    /// needs another in the app.
    fn most_clients(self) -> usize {
        match self {
            Kind::Rolldrop => files() - 2 * Budget::DEFAULT.connections,
            Kind::Nginx | Kind::Haproxy => files() / 2 - 200,
        }
    }
}

/// Returns all loads for the requested time or, without a request, those that may run beside other tests.
fn chosen() -> (Vec<Load>, Vec<Kind>, Duration) {
    if let Ok(seconds) = std::env::var("HOSTILE") {
        let only = std::env::var("HOSTILE_ONLY").ok();
        let kinds =
            Kind::ALL.into_iter().filter(|kind| only.as_deref().is_none_or(|name| name == kind.name()));
        let lasts = Duration::from_secs(seconds.parse().expect("HOSTILE=SECONDS"));
        return (LOADS.to_vec(), kinds.collect(), lasts);
    }
    let few =
        Attack::ALL.into_iter().filter_map(|attack| LOADS.into_iter().find(|load| load.attack == attack));
    let few = few.map(|load| Load { clients: load.clients.min(300), ..load });
    (few.collect(), vec![Kind::Rolldrop], Duration::from_secs(3))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecar_survives_hostile_clients() {
    let _apart = crate::runs::APART.lock().await;
    let (loads, kinds, lasts) = chosen();
    let mut faults = Vec::new();
    for load in loads {
        for kind in &kinds {
            let load = Load { clients: load.clients.min(kind.most_clients()), ..load };
            let outcome = attack(*kind, load, lasts).await;
            println!("{}", row(*kind, load, &outcome));
            if let (Kind::Rolldrop, Ok(outcome)) = (kind, outcome) {
                let holds = outcome.kills == 0
                    && outcome.peak.anonymous < ANONYMOUS_BYTES
                    && outcome.peak.all < LIMIT_BYTES
                    && outcome.served > 0
                    && outcome.failed == 0
                    && outcome.after.is_some();
                if !holds {
                    faults.push(format!("{} of {}: {outcome:?}", load.clients, load.name));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

//! Size and speed of the embedded cluster, seen from outside: the real binary, over its API.
//!
//! `cargo bench --bench cluster -- [--dataplane userspace|kernel] [--repeats N]` prints one
//! line per figure with its limit, and exits with code 1 if a figure misses its limit. It observes the
//! cluster only from outside: it reads processes from /proc, and everything else from the API.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures::{AsyncBufReadExt, StreamExt, TryStream, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams, WatchParams};
use kube::{Client, Config, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;

/// Time limit for each condition that a measurement waits for.
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of watchers that receive the events.
const WATCHERS: usize = 20;
/// Number of events that each watcher must see.
const EVENTS: usize = 30_000;
/// Number of clients that write at the same time.
const WRITERS: usize = 16;
/// Clock ticks per second in the processor times of /proc; part of Linux's stable interface.
const TICKS_PER_S: f64 = 100.0;
/// Time for which the idle cluster is measured.
const IDLE: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let options = Options::from_args()?;
    let mut kept = true;
    for figure in [
        three_pods(&options).await?,
        hundred_pods(&options).await?,
        watch_events(&options).await?,
        idle(&options).await?,
    ]
    .into_iter()
    .flatten()
    {
        kept &= figure.is_kept();
        println!("{figure}");
    }
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Command-line options.
struct Options {
    dataplane: String,
    repeats: usize,
}

impl Options {
    fn from_args() -> anyhow::Result<Self> {
        let mut options = Self { dataplane: "userspace".into(), repeats: 5 };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--dataplane" => options.dataplane = value()?,
                "--repeats" => options.repeats = value()?.parse()?,
                // Passed by cargo.
                "--bench" => {}
                _ => bail!("unknown argument {arg}"),
            }
        }
        ensure!(options.repeats > 0, "--repeats must be at least 1");
        Ok(options)
    }
}

/// A measured figure and its limit.
struct Figure {
    what: &'static str,
    unit: &'static str,
    /// One value per repetition.
    values: Vec<f64>,
    limit: Limit,
}

enum Limit {
    Below(f64),
    AtLeast(f64),
}

impl Figure {
    fn median(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    fn is_kept(&self) -> bool {
        match self.limit {
            Limit::Below(limit) => self.median() < limit,
            Limit::AtLeast(limit) => self.median() >= limit,
        }
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let min = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let limit = match self.limit {
            Limit::Below(limit) => format!("limit < {limit}"),
            Limit::AtLeast(limit) => format!("limit >= {limit}"),
        };
        let verdict = if self.is_kept() { "met" } else { "NOT MET" };
        write!(
            f,
            "{:<58} median {:.2} {} (min {min:.2}, max {max:.2}, n {}) {limit}: {verdict}",
            self.what,
            self.median(),
            self.unit,
            self.values.len(),
        )
    }
}

/// A cluster that runs in its own process.
struct Cluster {
    process: Child,
    client: Client,
    _stdout: Lines<BufReader<ChildStdout>>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts a cluster and waits until it reports that it is ready.
    async fn start(options: &Options, config: Value) -> anyhow::Result<Self> {
        let mut config = config;
        config["dataplane"] = json!(options.dataplane);
        let dir = tempfile::tempdir()?;
        let kubeconfig = dir.path().join("kubeconfig");
        let mut process = Command::new(env!("CARGO_BIN_EXE_rolldrop"))
            .arg("cluster")
            .args(["--config", &config.to_string()])
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--log-dir")
            .arg(dir.path().join("logs"))
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take().context("no pipe to stdout")?;
        let mut stdout = BufReader::new(stdout).lines();
        let ready = within("the cluster is ready", stdout.next_line()).await??;
        ready.context("the cluster ended before it was ready")?;
        let client = client(&kubeconfig).await?;
        Ok(Self { process, client, _stdout: stdout, _dir: dir })
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.process.id().context("the cluster has ended")?)?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM)?;
        within("the cluster ends", self.process.wait()).await??;
        Ok(())
    }
}

async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> anyhow::Result<T> {
    tokio::time::timeout(PATIENCE, future)
        .await
        .with_context(|| format!("timed out after {PATIENCE:?} waiting until {what}"))
}

fn object<T: DeserializeOwned>(value: Value) -> anyhow::Result<T> {
    Ok(serde_json::from_value(value)?)
}

fn deployment(replicas: usize) -> anyhow::Result<Deployment> {
    object(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "host", "command": ["sleep", "100000"]}]},
            },
        },
    }))
}

/// Creates a Deployment and waits until all its pods are ready.
async fn deploy(client: &Client, replicas: usize) -> anyhow::Result<()> {
    let api = Api::<Deployment>::default_namespaced(client.clone());
    let made = api.create(&PostParams::default(), &deployment(replicas)?).await?;
    let params = WatchParams::default().fields("metadata.name=web");
    let mut watch = api.watch(&params, &made.resource_version().unwrap_or_default()).await?.boxed();
    within("the pods are ready", async {
        while let Some(event) = watch.try_next().await? {
            if let kube::api::WatchEvent::Modified(now) = event
                && now.status.and_then(|s| s.ready_replicas) == Some(i32::try_from(replicas)?)
            {
                return Ok(());
            }
        }
        bail!("the watch ended")
    })
    .await?
}

/// Measures the time from the start of the process to three ready pods.
async fn three_pods(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let mut values = Vec::new();
    for _ in 0..options.repeats {
        let begun = Instant::now();
        let cluster = Cluster::start(options, json!({})).await?;
        deploy(&cluster.client, 3).await?;
        values.push(begun.elapsed().as_secs_f64());
        cluster.stop().await?;
    }
    Ok(vec![Figure {
        what: "process start to API and 3 pods ready",
        unit: "s",
        values,
        limit: Limit::Below(1.5),
    }])
}

/// Measures a hundred pods on five nodes.
async fn hundred_pods(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let cluster = Cluster::start(options, json!({"nodes": 5})).await?;
    let begun = Instant::now();
    deploy(&cluster.client, 100).await?;
    let values = vec![begun.elapsed().as_secs_f64()];
    cluster.stop().await?;
    Ok(vec![Figure { what: "100 pods ready on 5 nodes", unit: "s", values, limit: Limit::Below(30.0) }])
}

/// Sends events for one resource to many watchers, and checks that none is lost or out of order.
async fn watch_events(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let cluster = Cluster::start(options, json!({})).await?;
    let maps = Api::<ConfigMap>::default_namespaced(cluster.client.clone());
    let start =
        maps.list(&ListParams::default()).await?.metadata.resource_version.context("no resource version")?;
    let mut watchers = JoinSet::new();
    for _ in 0..WATCHERS {
        let path = format!("/api/v1/namespaces/default/configmaps?watch=true&resourceVersion={start}");
        let stream = cluster.client.request_stream(http::Request::get(path).body(Vec::new())?).await?;
        watchers.spawn(read_versions(stream.lines()));
    }
    let begun = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let maps = maps.clone();
        writers.spawn(async move { write(maps, writer).await });
    }
    let mut written = Vec::new();
    while let Some(versions) = writers.join_next().await {
        written.extend(versions??);
    }
    written.sort_unstable();
    while let Some(seen) = within("every watcher has seen all events", watchers.join_next()).await? {
        let seen = seen??;
        ensure!(
            seen == written,
            "a watcher saw {} events, which do not match the {} written",
            seen.len(),
            written.len()
        );
    }
    let rate = written.len() as f64 / begun.elapsed().as_secs_f64();
    cluster.stop().await?;
    Ok(vec![Figure {
        what: "events/s, each seen in order by all 20 watchers",
        unit: "/s",
        values: vec![rate],
        limit: Limit::AtLeast(5000.0),
    }])
}

/// Updates its own ConfigMap repeatedly; returns the resulting resource versions.
async fn write(maps: Api<ConfigMap>, writer: usize) -> anyhow::Result<Vec<u64>> {
    let name = format!("bench-{writer}");
    let mut versions = Vec::new();
    for n in 0..EVENTS / WRITERS {
        let map = object(json!({"metadata": {"name": name}, "data": {"n": n.to_string()}}))?;
        let made = match n {
            0 => maps.create(&PostParams::default(), &map).await?,
            _ => maps.replace(&name, &PostParams::default(), &map).await?,
        };
        versions.push(made.resource_version().context("no resource version")?.parse()?);
    }
    Ok(versions)
}

/// Reads from a watch until all events have arrived; returns their versions in order of arrival.
async fn read_versions(
    mut lines: impl TryStream<Ok = String, Error = std::io::Error> + Unpin,
) -> anyhow::Result<Vec<u64>> {
    let mut seen = Vec::with_capacity(EVENTS);
    while seen.len() < EVENTS / WRITERS * WRITERS {
        let line = lines.try_next().await?.context("the watch ended")?;
        let version = line.split(r#""resourceVersion":""#).nth(1).and_then(|rest| rest.split('"').next());
        seen.push(version.context("no resource version")?.parse()?);
    }
    Ok(seen)
}

/// Measures the processor time and memory of an idle cluster with twenty pods.
async fn idle(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let cluster = Cluster::start(options, json!({})).await?;
    deploy(&cluster.client, 20).await?;
    // The cluster is not idle yet: it still writes for a while after the last pod is ready.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let pid = cluster.process.id().context("the cluster has ended")?;
    let before = usage(pid)?;
    tokio::time::sleep(IDLE).await;
    let after = usage(pid)?;
    cluster.stop().await?;
    let cpu = (after.cpu_s - before.cpu_s) / IDLE.as_secs_f64() * 100.0;
    Ok(vec![
        Figure {
            what: "idle with 20 pods: CPU",
            unit: "% of a core",
            values: vec![cpu],
            limit: Limit::Below(3.0),
        },
        Figure {
            what: "idle with 20 pods: resident memory",
            unit: "MiB",
            values: vec![after.resident_mib],
            limit: Limit::Below(150.0),
        },
    ])
}

/// Processor time and memory of the cluster's own processes, excluding its pods.
struct Usage {
    cpu_s: f64,
    resident_mib: f64,
}

fn usage(root: u32) -> anyhow::Result<Usage> {
    let mut parents = HashMap::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(fields) = stat(pid) {
            parents.insert(pid, fields[1].parse::<u32>()?);
        }
    }
    let mut usage = Usage { cpu_s: 0.0, resident_mib: 0.0 };
    for &pid in parents.keys() {
        let mut ancestor = pid;
        while ancestor != root
            && let Some(&parent) = parents.get(&ancestor)
        {
            ancestor = parent;
        }
        if ancestor != root || !is_cluster(pid) {
            continue;
        }
        let Some(fields) = stat(pid) else { continue };
        usage.cpu_s += (fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / TICKS_PER_S;
        usage.resident_mib += resident_mib(pid).unwrap_or_default();
    }
    Ok(usage)
}

/// Returns the fields of /proc/PID/stat that follow the name.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(PathBuf::from(format!("/proc/{pid}/stat"))).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

fn resident_mib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

fn is_cluster(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"cluster"))
}

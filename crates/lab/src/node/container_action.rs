//! Actions of probes and lifecycle hooks: HTTP requests, gRPC calls, TCP connections, commands and pauses.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/prober/prober.go`, `pkg/kubelet/lifecycle/handlers.go` and
//! `pkg/probe`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ContainerPort, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use super::container_process::Launch;
use super::grpc_check::GrpcCheck;
use super::http_get::{HttpGet, HttpGetScheme, network_error};
use super::launch::ProgramPaths;
use super::outside_commands::Outside;

/// User agent for probes.
pub(super) const PROBE_AGENT: &str = "kube-probe/1.36";
/// Pause before a gRPC probe redials an unreachable server (`BaseDelay` of
/// google.golang.org/grpc/backoff.DefaultConfig).
const GRPC_DIAL_BACK_OFF: Duration = Duration::from_secs(1);

/// Action that a kubelet performs on a container.
#[derive(Clone, Debug)]
pub(super) enum ContainerAction {
    HttpGet(HttpGet),
    GrpcCheck(GrpcCheck),
    TcpConnect { address: String },
    Exec { launch: Launch, command: String },
    Sleep(Duration),
}

/// Result of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ActionOutcome {
    Success,
    /// Counts as success, but with a warning.
    Warning(String),
    Failure(String),
}

/// Error that kept an action from being performed at all. A kubelet counts this as neither a probe success nor a
/// probe failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotDone {
    #[error("{0}")]
    Failed(String),
    /// Refused because it would have reached beyond the pod.
    #[error("refused: {0}")]
    Refused(#[from] Outside),
}

impl NotDone {
    /// Returns the event's message for a hook with this name. Omits reasons that may contain a secret.
    pub(super) fn hook_message(&self, failed: &str) -> String {
        match self {
            Self::Failed(_) => failed.to_owned(),
            Self::Refused(_) => format!("{failed}: {self}"),
        }
    }
}

/// Container on which actions are performed.
#[derive(Clone, Debug)]
pub(super) struct ActionTarget {
    pub(super) pod_ip: String,
    pub(super) ports: Vec<ContainerPort>,
    /// Launch of the container; commands run in its environment.
    pub(super) launch: Launch,
}

impl ContainerAction {
    /// Returns the action for a probe.
    pub(super) fn of_probe(probe: &Probe, target: &ActionTarget) -> Result<Self, NotDone> {
        if let Some(get) = &probe.http_get {
            http_get(get, target, PROBE_AGENT)
        } else if let Some(tcp) = &probe.tcp_socket {
            tcp_connect(tcp, target)
        } else if let Some(exec) = &probe.exec {
            exec_command(exec, target)
        } else if let Some(grpc) = &probe.grpc {
            grpc_check(grpc, target)
        } else {
            Err(NotDone::Failed("missing probe handler".to_owned()))
        }
    }

    /// Returns the action for a lifecycle hook.
    pub(super) fn of_hook(hook: &LifecycleHandler, target: &ActionTarget) -> Result<Self, NotDone> {
        if let Some(exec) = &hook.exec {
            exec_command(exec, target)
        } else if let Some(get) = &hook.http_get {
            http_get(get, target, "kube-lifecycle/1.36")
        } else if let Some(sleep) = &hook.sleep {
            Ok(Self::Sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))))
        } else {
            // A kubelet does not execute tcpSocket hooks either.
            Err(NotDone::Failed("invalid handler".to_owned()))
        }
    }

    /// Performs the action as a probe with `longest` as its time limit.
    ///
    /// # Errors
    ///
    /// Fails if the action could not be performed.
    pub(super) async fn probe(&self, longest: Duration) -> Result<ActionOutcome, NotDone> {
        if let Self::GrpcCheck(check) = self {
            // The check itself reports what took too long.
            return Ok(check
                .run(longest)
                .await
                .map_or_else(ActionOutcome::Failure, |()| ActionOutcome::Success));
        }
        let done = tokio::time::timeout(longest, self.probe_to_the_end()).await;
        done.unwrap_or_else(|_| Ok(ActionOutcome::Failure(self.too_late(longest))))
    }

    async fn probe_to_the_end(&self) -> Result<ActionOutcome, NotDone> {
        let refused =
            |error: std::io::Error| NotDone::Failed(format!("failed to exec in container: {error}"));
        Ok(match self {
            Self::HttpGet(get) => match get.run().await {
                Ok(200..300) => ActionOutcome::Success,
                Ok(300..400) => ActionOutcome::Warning("Probe terminated redirects".to_owned()),
                Ok(status) => ActionOutcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
                Err(error) => ActionOutcome::Failure(error),
            },
            Self::TcpConnect { address } => match TcpStream::connect(address).await {
                Ok(_) => ActionOutcome::Success,
                Err(error) => {
                    ActionOutcome::Failure(format!("dial tcp {address}: {}", network_error(&error)))
                }
            },
            Self::Exec { launch, .. } => match launch.run().await.map_err(refused)? {
                (exit, _) if exit.code == 0 => ActionOutcome::Success,
                (_, output) => ActionOutcome::Failure(output.trim_end().to_owned()),
            },
            Self::Sleep(duration) => {
                tokio::time::sleep(*duration).await;
                ActionOutcome::Success
            }
            Self::GrpcCheck(_) => return Err(NotDone::Failed("a gRPC call cannot be a hook".to_owned())),
        })
    }

    fn too_late(&self, longest: Duration) -> String {
        match self {
            Self::HttpGet(get) => format!(
                "Get \"{}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                get.url()
            ),
            Self::TcpConnect { address } => format!("dial tcp {address}: i/o timeout"),
            Self::Exec { command, .. } => {
                format!("command timed out: {command:?} timed out after {}s", longest.as_secs())
            }
            Self::GrpcCheck(_) | Self::Sleep(_) => "timeout".to_owned(),
        }
    }

    /// Performs the action as a lifecycle hook, without a time limit. Any HTTP response is a success.
    ///
    /// # Errors
    ///
    /// The reason why the action failed.
    pub(super) async fn run_hook(&self) -> Result<(), String> {
        match self {
            Self::HttpGet(get) => get.run().await.map(drop),
            Self::Exec { launch, .. } => match launch.run().await {
                Ok((exit, _)) if exit.code == 0 => Ok(()),
                Ok((exit, output)) => Err(format!("command exited with {}: {output}", exit.code)),
                Err(error) => Err(error.to_string()),
            },
            Self::GrpcCheck(_) | Self::TcpConnect { .. } | Self::Sleep(_) => {
                match self.probe_to_the_end().await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.to_string()),
                }
            }
        }
    }
}

fn http_get(get: &HTTPGetAction, target: &ActionTarget, agent: &str) -> Result<ContainerAction, NotDone> {
    let scheme = match get.scheme.as_deref().unwrap_or("HTTP") {
        scheme if scheme.eq_ignore_ascii_case("https") => HttpGetScheme::Https,
        _ => HttpGetScheme::Http,
    };
    let path = get.path.as_deref().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let headers = get.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
    let (host, port) = (host(get.host.as_deref(), target), port(&get.port, target)?);
    Ok(ContainerAction::HttpGet(HttpGet { scheme, host, port, path, headers, agent: agent.to_owned() }))
}

fn grpc_check(grpc: &GRPCAction, target: &ActionTarget) -> Result<ContainerAction, NotDone> {
    let address = super::http_get::authority(&target.pod_ip, port(&IntOrString::Int(grpc.port), target)?);
    let service = grpc.service.clone().unwrap_or_default();
    Ok(ContainerAction::GrpcCheck(GrpcCheck { address, service, back_off: GRPC_DIAL_BACK_OFF }))
}

fn tcp_connect(tcp: &TCPSocketAction, target: &ActionTarget) -> Result<ContainerAction, NotDone> {
    let (host, port) = (host(tcp.host.as_deref(), target), port(&tcp.port, target)?);
    Ok(ContainerAction::TcpConnect { address: super::http_get::authority(&host, port) })
}

fn exec_command(exec: &ExecAction, target: &ActionTarget) -> Result<ContainerAction, NotDone> {
    let words: Vec<_> = exec.command.iter().flatten().cloned().collect();
    let (word, args) =
        words.split_first().ok_or_else(|| NotDone::Failed("exec has no command".to_owned()))?;
    let launch = &target.launch;
    if launch.placement.is_the_machine()
        && let Some(outside) = Outside::of(&words)
    {
        return Err(outside.into());
    }
    let path = launch.env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path);
    let places = ProgramPaths {
        working_dir: launch.working_dir.as_deref(),
        path,
        mounts: &launch.mounts,
        own_program: launch.own_program.as_deref(),
    };
    let program = places
        .find_program(word)
        .map_err(|error| NotDone::Failed(format!("failed to exec in container: {error}")))?;
    let command = words.join(" ");
    Ok(ContainerAction::Exec { launch: Launch { program, args: args.to_vec(), ..launch.clone() }, command })
}

fn host(given: Option<&str>, target: &ActionTarget) -> String {
    given.filter(|host| !host.is_empty()).unwrap_or(&target.pod_ip).to_owned()
}

fn port(port: &IntOrString, target: &ActionTarget) -> Result<u16, NotDone> {
    let named = |name: &str| target.ports.iter().find(|port| port.name.as_deref() == Some(name));
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => named(name)
                .map(|port| port.container_port)
                .ok_or_else(|| NotDone::Failed(format!("couldn't find port: {name:?} in container")))?,
        },
    };
    u16::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| NotDone::Failed(format!("invalid port number: {number}")))
}

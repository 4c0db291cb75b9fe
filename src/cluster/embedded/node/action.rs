//! What probes and lifecycle hooks do: an HTTP request, a connection, a command, a pause.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{
    ContainerPort, ExecAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use super::launch::find_program;
use super::process::Launch;

/// Something that a kubelet does to a container.
#[derive(Clone, Debug)]
pub(super) enum Action {
    HttpGet { address: String, path: String, headers: Vec<(String, String)> },
    TcpConnect { address: String },
    Exec(Launch),
    Sleep(Duration),
}

/// Why an action failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ActionError {
    #[error("{0}")]
    Transport(String),
    #[error("HTTP probe failed with statuscode: {0}")]
    Status(StatusCode),
    #[error("command ended with exit code {0}")]
    Exit(i32),
}

/// The container that actions are aimed at.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) pod_ip: String,
    pub(super) ports: Vec<ContainerPort>,
    /// How the container was started: commands run in its surroundings.
    pub(super) launch: Launch,
}

impl Action {
    /// What a probe does; the error names what is not supported.
    pub(super) fn of_probe(probe: &Probe, target: &Target) -> Result<Self, String> {
        if let Some(get) = &probe.http_get {
            Self::http_get(get, target)
        } else if let Some(tcp) = &probe.tcp_socket {
            Self::tcp_connect(tcp, target)
        } else if let Some(exec) = &probe.exec {
            Self::exec(exec, target)
        } else {
            Err("the embedded cluster supports httpGet, tcpSocket and exec probes".to_owned())
        }
    }

    /// What a lifecycle hook does.
    pub(super) fn of_hook(hook: &LifecycleHandler, target: &Target) -> Result<Self, String> {
        if let Some(sleep) = &hook.sleep {
            Ok(Self::Sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))))
        } else if let Some(get) = &hook.http_get {
            Self::http_get(get, target)
        } else if let Some(tcp) = &hook.tcp_socket {
            Self::tcp_connect(tcp, target)
        } else if let Some(exec) = &hook.exec {
            Self::exec(exec, target)
        } else {
            Err("the hook names no action".to_owned())
        }
    }

    fn http_get(get: &HTTPGetAction, target: &Target) -> Result<Self, String> {
        if get.scheme.as_deref().is_some_and(|scheme| scheme != "HTTP") {
            return Err("the embedded cluster supports httpGet with scheme HTTP only".to_owned());
        }
        let path = get.path.as_deref().unwrap_or("/");
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let headers = get.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
        Ok(Self::HttpGet { address: address(get.host.as_deref(), &get.port, target)?, path, headers })
    }

    fn tcp_connect(tcp: &TCPSocketAction, target: &Target) -> Result<Self, String> {
        Ok(Self::TcpConnect { address: address(tcp.host.as_deref(), &tcp.port, target)? })
    }

    fn exec(exec: &ExecAction, target: &Target) -> Result<Self, String> {
        let mut words = exec.command.iter().flatten().cloned();
        let word = words.next().ok_or("exec names no command")?;
        let launch = &target.launch;
        let path = launch.env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path);
        let program =
            find_program(&word, launch.working_dir.as_deref(), path).map_err(|error| error.to_string())?;
        Ok(Self::Exec(Launch { program, args: words.collect(), ..launch.clone() }))
    }

    /// Does it. For a hook, `Err(ActionError::Status(_))` is a success.
    pub(super) async fn run(&self) -> Result<(), ActionError> {
        let transport = |error: std::io::Error| ActionError::Transport(error.to_string());
        match self {
            Self::HttpGet { address, path, headers } => {
                let status = http_status(address, path, headers).await.map_err(ActionError::Transport)?;
                if status.is_success() || status.is_redirection() {
                    Ok(())
                } else {
                    Err(ActionError::Status(status))
                }
            }
            Self::TcpConnect { address } => TcpStream::connect(address).await.map(drop).map_err(transport),
            Self::Exec(launch) => match launch.run().await.map_err(transport)?.code {
                0 => Ok(()),
                code => Err(ActionError::Exit(code)),
            },
            Self::Sleep(duration) => {
                tokio::time::sleep(*duration).await;
                Ok(())
            }
        }
    }
}

fn address(host: Option<&str>, port: &IntOrString, target: &Target) -> Result<String, String> {
    let named = |name: &str| target.ports.iter().find(|port| port.name.as_deref() == Some(name));
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => {
                named(name).map(|port| port.container_port).ok_or(format!("no port is named {name:?}"))?
            }
        },
    };
    let number = u16::try_from(number).map_err(|_| format!("{number} is not a port"))?;
    let host = host.filter(|host| !host.is_empty()).unwrap_or(&target.pod_ip);
    Ok(match host.parse() {
        Ok(ip) => SocketAddr::new(ip, number).to_string(),
        Err(_) => format!("{host}:{number}"),
    })
}

async fn http_status(address: &str, path: &str, headers: &[(String, String)]) -> Result<StatusCode, String> {
    let stream =
        TcpStream::connect(address).await.map_err(|e| format!("Get \"http://{address}{path}\": {e}"))?;
    let error = |e: &dyn std::fmt::Display| format!("Get \"http://{address}{path}\": {e}");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| error(&e))?;
    let mut request = Request::get(path).header("host", address).header("user-agent", "kube-probe/1.36");
    request = request.header("connection", "close");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| error(&e))?;
    let answer = async { sender.send_request(request).await.map(|answer| answer.status()) };
    tokio::pin!(answer);
    // The connection must be driven until the answer's head is here; its end can come first.
    tokio::select! {
        status = &mut answer => status.map_err(|e| error(&e)),
        _ = connection => answer.await.map_err(|e| error(&e)),
    }
}

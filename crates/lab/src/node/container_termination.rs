//! Terminates a pod's containers in order and reports how they exited.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/kuberuntime/kuberuntime_termination_order.go`.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::container_view::{ContainerRole, Handle, RunState, TerminatedState};
use super::grace::Grace;
use super::pod_context::PodContext;
use super::stop::stop;

/// Terminates the running containers: all main containers at the same time, and each sidecar after all main containers
/// and the sidecars that were started after it. Returns the result of each container, in the containers' order; `None`
/// for a container whose exit has already been shown.
pub(super) async fn end_containers(
    context: &Arc<PodContext>,
    containers: &[Handle],
    grace: Grace,
) -> Vec<Option<TerminatedState>> {
    let ended: Vec<_> = containers.iter().map(|_| CancellationToken::new()).collect();
    let endings = containers.iter().enumerate().map(|(n, container)| {
        let before_this: Vec<_> = containers
            .iter()
            .zip(&ended)
            .enumerate()
            .filter(|(other, (handle, _))| {
                container.kind == ContainerRole::Sidecar
                    && (handle.kind == ContainerRole::Main
                        || (handle.kind == ContainerRole::Sidecar && *other > n))
            })
            .map(|(_, (_, token))| token.clone())
            .collect();
        let own = ended[n].clone();
        async move {
            let _ended_when_dropped = own.drop_guard();
            let turn = async move {
                for other in &before_this {
                    other.cancelled().await;
                }
                if !before_this.is_empty() {
                    context.shared.delay(|latencies| latencies.container_gone_to_sidecar_stop_signal).await;
                }
            };
            end_container(context, container, grace, turn).await
        }
    });
    futures::future::join_all(endings).await
}

async fn end_container(
    context: &Arc<PodContext>,
    container: &Handle,
    grace: Grace,
    turn: impl Future<Output = ()>,
) -> Option<TerminatedState> {
    let view = container.view.borrow().clone();
    let Some(running) = view.running else {
        let waiting = matches!(view.state, RunState::Waiting { .. });
        return waiting
            .then(|| view.last.unwrap_or_else(|| TerminatedState::unknown(context.shared.registry.now())));
    };
    if !running.process.has_exited() {
        let message = format!("Stopping container {}", container.spec.name);
        stop(context, &container.spec, &running.target, &running.process, grace, &message, turn).await;
    }
    let mut seen = container.view.clone();
    // The supervisor notes the exit and lives as long as the pod's worker.
    let seen = seen.wait_for(|view| view.ended.is_some()).await;
    seen.ok().and_then(|view| view.ended.clone())
}

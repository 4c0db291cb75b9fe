//! Stops one container: preStop hook, waiting its turn, stop signal, SIGKILL.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/kuberuntime/kuberuntime_container.go`
//! (`killContainer`, `executePreStopHook`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use nix::sys::signal::Signal;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::container_action::{ActionTarget, ContainerAction};
use super::container_process::{ContainerProcess, ProcessExit};
use super::grace::Grace;
use super::launch::image_name;
use super::pod_context::PodContext;
use crate::config::{Image, signal};

/// Stops a container's process within the grace period. `turn` completes once the containers that must exit before this
/// one have exited. `message` is the event's message.
pub(super) async fn stop(
    context: &Arc<PodContext>,
    container: &Container,
    target: &ActionTarget,
    process: &ContainerProcess,
    mut grace: Grace,
    message: &str,
    turn: impl Future<Output = ()>,
) -> ProcessExit {
    let lifecycle = container.lifecycle.as_ref();
    context.note(&container.name, "Killing", message);

    let mut hook = None;
    if let Some(handler) = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref())
        && let Some(longest) = grace.longest_wait()
    {
        context.shared.delay(|latencies| latencies.kubelet_delete_to_pre_stop).await;
        let begin = Instant::now();
        let mut started = RunningHook::start(context, container, handler, target);
        // A hook that outlasts the grace period keeps running.
        if timeout(longest, started.wait(process)).await.is_err() {
            hook = Some(started);
        }
        grace = grace.after(begin.elapsed());
        context.shared.delay(|latencies| latencies.pre_stop_to_stop_signal).await;
    } else {
        context.shared.delay(|latencies| latencies.kubelet_delete_to_stop_signal).await;
    }

    if let Some(longest) = grace.longest_wait() {
        let begin = Instant::now();
        // The others have exited or the grace period is over, so it is this container's turn.
        let _ = timeout(longest, turn).await;
        grace = grace.after(begin.elapsed());
    }

    process.stop(stop_signal(container, &context.shared.config.images));
    let to_kill = grace.stop_to_kill();
    let exit = match timeout(to_kill, beside(&mut hook, process)).await {
        Ok(exit) => exit,
        Err(_) => {
            process.kill();
            beside(&mut hook, process).await
        }
    };
    if let Some(mut hook) = hook {
        // A request ends when its connection is closed, and the other end may be in another container.
        let process = process.clone();
        context.run_beside(async move { hook.wait(&process).await });
    }
    exit
}

/// Waits until the process exits. A hook may still be running and may complete first.
async fn beside(hook: &mut Option<RunningHook>, process: &ContainerProcess) -> ProcessExit {
    if let Some(running) = hook {
        tokio::select! {
            exit = process.exited() => return exit,
            () = running.wait(process) => *hook = None,
        }
    }
    process.exited().await
}

/// Returns the signal that asks a container to exit: its own `lifecycle.stopSignal`, or its image's, or SIGTERM.
fn stop_signal(container: &Container, images: &BTreeMap<String, Image>) -> Signal {
    let own = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    let image = images.get(image_name(container.image.as_deref().unwrap_or_default()));
    let name = own.or_else(|| image.and_then(|image| image.stop_signal.as_deref()));
    name.and_then(signal).unwrap_or(Signal::SIGTERM)
}

/// A running preStop hook.
struct RunningHook {
    context: Arc<PodContext>,
    container: String,
    /// Message for the event if the hook fails.
    message: String,
    /// True if the hook is a command, which is killed with the container that it runs in.
    ends_with_container: bool,
    run: JoinSet<Result<(), String>>,
}

impl RunningHook {
    fn start(
        context: &Arc<PodContext>,
        container: &Container,
        handler: &LifecycleHandler,
        target: &ActionTarget,
    ) -> Self {
        let action = ContainerAction::of_hook(handler, target);
        let message = match &action {
            Err(error) => error.hook_message("PreStopHook failed"),
            Ok(_) => "PreStopHook failed".to_owned(),
        };
        let ends_with_container = matches!(action, Ok(ContainerAction::Exec { .. }));
        let until_it_arrives = match action {
            Ok(ContainerAction::HttpGet(_)) => {
                context.shared.sample(|latencies| latencies.pre_stop_to_http_request)
            }
            _ => Duration::ZERO,
        };
        let mut run = JoinSet::new();
        run.spawn(async move {
            sleep(until_it_arrives).await;
            match action {
                Ok(action) => action.run_hook().await,
                Err(error) => Err(error.to_string()),
            }
        });
        let (context, container) = (Arc::clone(context), container.name.clone());
        Self { context, container, message, ends_with_container, run }
    }

    /// Waits until the hook completes, and records an event if it failed.
    async fn wait(&mut self, process: &ContainerProcess) {
        let result = tokio::select! {
            result = self.run.join_next() => match result {
                Some(result) => result.unwrap_or_else(|error| Err(error.to_string())),
                None => return,
            },
            _ = process.exited(), if self.ends_with_container => {
                self.run.abort_all();
                Err("the container has exited".to_owned())
            }
        };
        if let Err(why) = result {
            tracing::debug!(container = self.container, why, "the preStop hook failed");
            self.context.warn(&self.container, "FailedPreStopHook", &self.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stop_signal_prefers_container_over_image() {
        let image = Image { stop_signal: Some("SIGQUIT".to_owned()) };
        let images = BTreeMap::from([("nginx".to_owned(), image)]);
        let signal_of = |image: &str, lifecycle| {
            let container = json!({"name": "c", "image": image, "lifecycle": lifecycle});
            stop_signal(&serde_json::from_value(container).unwrap(), &images)
        };
        for (name, signal) in
            [("SIGINT", Signal::SIGINT), ("SIGUSR1", Signal::SIGUSR1), ("SIGPOLL", Signal::SIGIO)]
        {
            assert_eq!(signal_of("nginx", json!({"stopSignal": name})), signal);
        }
        assert_eq!(signal_of("docker.io/library/nginx:1.27", json!({})), Signal::SIGQUIT);
        assert_eq!(signal_of("nginx-unprivileged", json!({})), Signal::SIGTERM);
    }
}

//! Ends one container: preStop hook, its turn, stop signal, SIGKILL.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/kuberuntime/kuberuntime_container.go`
//! (`killContainer`, `executePreStopHook`).

use std::str::FromStr;

use k8s_openapi::api::core::v1::Container;
use nix::sys::signal::Signal;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::action::{Action, ActionError, Target};
use super::grace::Grace;
use super::pod::PodContext;
use super::process::{Exit, Process};

/// Ends a container's process within the grace period. `turn` ends when the containers
/// that must end before this one have.
pub(super) async fn stop(
    context: &PodContext,
    container: &Container,
    target: &Target,
    process: &Process,
    mut grace: Grace,
    turn: impl Future<Output = ()>,
) -> Exit {
    let sampler = &context.shared.sampler;
    let latencies = &context.shared.config.latencies;
    let lifecycle = container.lifecycle.as_ref();
    context.note("Killing", &format!("Stopping container {}", container.name));

    // A hook that outlasts the grace period runs on beside what follows, and ends with
    // the container.
    let mut hook_running_on = JoinSet::new();
    if let Some(hook) = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref())
        && let Some(longest) = grace.longest_wait()
    {
        sleep(sampler.sample(&latencies.kubelet_delete_to_pre_stop)).await;
        let begin = Instant::now();
        match Action::of_hook(hook, target) {
            Ok(action) => {
                let ends_with_container = !matches!(action, Action::Sleep(_));
                hook_running_on.spawn(async move { action.run().await });
                let result = tokio::select! {
                    result = hook_running_on.join_next() => result,
                    () = sleep(longest) => None,
                    _ = process.exited(), if ends_with_container => None,
                };
                match result {
                    Some(Ok(Err(error))) if !matches!(error, ActionError::Status(_)) => {
                        context.warn_of_hook(&container.name, &error.to_string());
                    }
                    Some(_) => {}
                    None if ends_with_container => {
                        context.warn_of_hook(&container.name, "it did not end within the grace period");
                    }
                    None => {}
                }
            }
            Err(why) => context.warn_of_hook(&container.name, &why),
        }
        grace = grace.after(begin.elapsed().min(longest));
        sleep(sampler.sample(&latencies.pre_stop_to_stop_signal)).await;
    } else {
        sleep(sampler.sample(&latencies.kubelet_delete_to_stop_signal)).await;
    }

    if let Some(longest) = grace.longest_wait() {
        let begin = Instant::now();
        // Whether the others have ended or the grace period has: it is this one's turn.
        let _ = timeout(longest, turn).await;
        grace = grace.after(begin.elapsed().min(longest));
    }

    let stop_signal = lifecycle.and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    process.signal(stop_signal.and_then(|name| Signal::from_str(name).ok()).unwrap_or(Signal::SIGTERM));
    match timeout(grace.stop_to_kill(), process.exited()).await {
        Ok(exit) => exit,
        Err(_) => {
            process.signal(Signal::SIGKILL);
            process.exited().await
        }
    }
}

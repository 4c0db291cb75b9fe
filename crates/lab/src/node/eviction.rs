//! Evictions by the node agent: pods that take up more of the machine's storage than their limits allow.
//!
//! Looked at are what `emptyDir` volumes with a `sizeLimit` hold, and for limits of
//! `ephemeral-storage` those volumes and the containers' logs; containers have no writable layer
//! here. There are no evictions for a node that runs out of something: the memory and the disk of
//! all nodes are those of this machine.
//!
//! Source: kubernetes/kubernetes, `pkg/kubelet/eviction/eviction_manager.go`
//! (`localStorageEviction`), `pkg/kubelet/server/stats/volume_stat_calculator.go` and
//! `pkg/volume/util/fs/fs.go` (`DiskUsage`).

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::future::pending;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::context::PodContext;
use super::quantity;

/// The grace period of a pod that is evicted (`immediateEvictionGracePeriodSeconds`).
pub(super) const GRACE_SECONDS: i64 = 1;

/// What the disk counts in.
const BLOCK_BYTES: u64 = 512;

/// Bytes by name.
type Usage = BTreeMap<String, u64>;

/// Waits until the pod takes up too much, and answers how so.
pub(super) async fn until_over_limit(context: &Arc<PodContext>) -> String {
    if !has_limits(context.pod()) {
        return pending().await;
    }
    let mut housekeeping = context.housekeeping.clone();
    let period = context.kubelet().volume_stats_agg_period;
    // Each pod's volumes are looked through at times of their own.
    let mut due = Instant::now() + period.mul_f64(rand::random());
    let mut volumes = Usage::new();
    loop {
        // The agent holds the other end as long as pods run.
        let _ = housekeeping.changed().await;
        let (is_due, of) = (Instant::now() >= due, Arc::clone(context));
        let look = move || (is_due.then(|| of.volume_usage()), of.log_usage());
        // Not done only when the cluster ends.
        let Ok((found, logs)) = spawn_blocking(look).await else { return pending().await };
        if let Some(found) = found {
            volumes = found;
            // `JitterUntil` with a factor of 1.
            due = Instant::now() + period.mul_f64(rand::random_range(1.0..2.0));
        }
        if let Some(why) = over_limit(context.pod(), &volumes, &logs) {
            return why;
        }
    }
}

/// What of a pod's volumes counts: a volume in memory is no larger than its limit by itself.
fn counted_volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(|volume| {
        volume.empty_dir.as_ref().is_some_and(|empty| empty.medium.as_deref() != Some("Memory"))
    })
}

/// The limit of a volume's size, as bytes and as it is written.
fn size_limit(volume: &Volume) -> Option<(f64, &str)> {
    let text = volume.empty_dir.as_ref()?.size_limit.as_ref()?.0.as_str();
    Some((quantity::parse(text).filter(|limit| *limit > 0.0)?, text))
}

/// A container's limit of local storage, alike.
fn storage_limit(container: &Container) -> Option<(f64, &str)> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    let text = limits.get("ephemeral-storage")?.0.as_str();
    Some((quantity::parse(text).filter(|limit| *limit > 0.0)?, text))
}

/// The containers that run through a pod's life.
fn lasting_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars = init.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    pod.spec.iter().flat_map(|spec| &spec.containers).chain(sidecars)
}

fn has_limits(pod: &Pod) -> bool {
    counted_volumes(pod).any(|volume| size_limit(volume).is_some())
        || lasting_containers(pod).any(|container| storage_limit(container).is_some())
}

/// The first limit that is exceeded, in the kubelet's words.
fn over_limit(pod: &Pod, volumes: &Usage, logs: &Usage) -> Option<String> {
    let exceeds = |used: u64, limit: f64| used as f64 > limit;
    let used_by = |usage: &Usage, name: &str| usage.get(name).copied().unwrap_or(0);
    for volume in counted_volumes(pod) {
        if let Some((limit, text)) = size_limit(volume)
            && exceeds(used_by(volumes, &volume.name), limit)
        {
            return Some(format!("Usage of EmptyDir volume {:?} exceeds the limit {text:?}. ", volume.name));
        }
    }
    let limits: Vec<_> = lasting_containers(pod).filter_map(storage_limit).collect();
    let held = counted_volumes(pod).map(|volume| used_by(volumes, &volume.name));
    let total = held.chain(logs.values().copied()).sum();
    if !limits.is_empty() && exceeds(total, limits.iter().map(|(limit, _)| limit).sum()) {
        let text = match limits[..] {
            [(_, text)] => text.to_owned(),
            _ => quantity::in_binary(limits.iter().map(|(limit, _)| limit).sum()),
        };
        return Some(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {text}. "
        ));
    }
    let mains = pod.spec.iter().flat_map(|spec| &spec.containers);
    mains.into_iter().find_map(|container| {
        let (limit, text) = storage_limit(container)?;
        exceeds(used_by(logs, &container.name), limit).then(|| {
            format!("Container {} exceeded its local ephemeral storage limit {text:?}. ", container.name)
        })
    })
}

/// What a file, or all below a directory, takes up on the disk. What vanishes meanwhile counts as nothing.
pub(super) fn disk_usage(path: &Path) -> u64 {
    let (mut bytes, mut linked, mut left) = (0, HashSet::new(), vec![path.to_owned()]);
    while let Some(path) = left.pop() {
        let Ok(file) = fs::symlink_metadata(&path) else { continue };
        if file.nlink() > 1 && !file.is_dir() && !linked.insert((file.dev(), file.ino())) {
            continue;
        }
        bytes += file.blocks() * BLOCK_BYTES;
        if file.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MEBI: u64 = 1024 * 1024;

    fn told(volumes: &[(&str, u64)], logs: &[(&str, u64)], more: bool) -> Option<String> {
        let limits = |limit: &str| json!({"limits": {"ephemeral-storage": limit}});
        let mut containers = vec![json!({"name": "app", "resources": limits("2Mi")})];
        if more {
            containers.push(json!({"name": "other", "resources": limits("1Gi")}));
        }
        let pod = serde_json::from_value(json!({"spec": {
            "volumes": [
                {"name": "free", "emptyDir": {}},
                {"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}},
                {"name": "memory", "emptyDir": {"sizeLimit": "1Mi", "medium": "Memory"}},
            ],
            "containers": containers,
        }}))
        .unwrap();
        let usage =
            |list: &[(&str, u64)]| list.iter().map(|(name, used)| ((*name).to_owned(), *used)).collect();
        over_limit(&pod, &usage(volumes), &usage(logs))
    }

    #[test]
    fn the_limits_are_those_of_volumes_then_of_the_pod_then_of_containers() {
        let limits = [("scratch", MEBI), ("free", MEBI)];
        assert_eq!(told(&limits, &[], false), None);
        assert_eq!(told(&[("memory", 9 * MEBI)], &[], false), None);
        let volume = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ";
        assert_eq!(told(&[("scratch", MEBI + 1)], &[], false).as_deref(), Some(volume));
        let pod = "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ";
        assert_eq!(told(&limits, &[("app", 1)], false).as_deref(), Some(pod));
        let container = "Container app exceeded its local ephemeral storage limit \"2Mi\". ";
        assert_eq!(told(&[], &[("app", 2 * MEBI + 1)], true).as_deref(), Some(container));
        let both = "Pod ephemeral local storage usage exceeds the total limit of containers 1026Mi. ";
        assert_eq!(told(&[("free", 1025 * MEBI)], &[("app", 2 * MEBI)], true).as_deref(), Some(both));
    }

    #[test]
    fn files_count_once_by_what_they_take_up() {
        let dir = tempfile::tempdir().unwrap();
        let empty = disk_usage(dir.path());
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("below/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(dir.path().join("below/file"), dir.path().join("again")).unwrap();
        let used = disk_usage(dir.path()) - empty;
        assert!((100_000..200_000).contains(&used), "{used}");
        assert_eq!(disk_usage(&dir.path().join("none")), 0);
    }
}

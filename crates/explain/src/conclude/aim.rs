//! Determines whether a run was meant to terminate pods. A gate that saw no termination has checked nothing.

use crate::model::Aim;
use crate::timeline::Timeline;
use rolldrop_record::event::ActionName;

pub(crate) fn aim(timeline: &Timeline) -> Aim {
    if timeline.commands.iter().any(|command| command.disruption.is_none()) {
        return Aim::Disrupt;
    }
    // A standalone load has no `spec`.
    let Some(spec) = timeline.info.scenario.get("spec") else { return Aim::Other };
    let actions: Vec<Aim> = spec
        .get("disruptions")
        .and_then(|disruptions| disruptions.as_array())
        .into_iter()
        .flatten()
        .filter_map(|disruption| disruption.get("action")?.as_str()?.parse().ok())
        .map(aim_of)
        .collect();
    [Aim::Disrupt, Aim::Observe, Aim::Other]
        .into_iter()
        .find(|aim| actions.contains(aim))
        .unwrap_or(Aim::Observe)
}

fn aim_of(action: ActionName) -> Aim {
    match action {
        ActionName::DeletePod
        | ActionName::Evict
        | ActionName::RollingRestart
        | ActionName::SetImage
        | ActionName::Drain
        | ActionName::NodeShutdown => Aim::Disrupt,
        // Some patches, scalings and programs terminate pods.
        ActionName::Patch | ActionName::Scale | ActionName::Exec | ActionName::Observe => Aim::Observe,
        ActionName::Crash | ActionName::Relabel | ActionName::RestartNodeAgent => Aim::Other,
    }
}

//! Shows actions on the cluster as named marks above a time axis.

use super::axis::Axis;
use super::frame::{self, LANE, SMALL};
use super::palette;
use crate::words;
use rolldrop_canvas::{Canvas, Dash, FillPattern, Rect};
use rolldrop_explain::model::{ChartData, ClusterAction, Deed};
use rolldrop_record::event::ActionName;

/// Maximum number of rows of names. If more are needed, consecutive marks of the same kind share a name.
const ROWS: usize = 3;
/// Number of marks above which their lines are drawn faintly.
const BOLD: usize = 12;
/// Maximum width of a name, in pixels.
const NAME_PX: f64 = 420.0;
/// Prefix of a command's words.
const COMMAND: &str = "$";
/// Distance in pixels below which marks are merged.
const SAME_PX: f64 = 2.0;

/// One mark, or several consecutive marks of the same kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ActionMark {
    /// Times of the marks in seconds, in order.
    pub(super) at_s: Vec<f64>,
    kind: &'static str,
    /// Name of the pod, or other text that distinguishes the mark from others of its kind.
    of: String,
}

impl ActionMark {
    /// Returns the name shown for the mark.
    pub(super) fn name(&self) -> String {
        match self.at_s.len() {
            1 if self.of.is_empty() => self.kind.to_owned(),
            1 => format!("{} {}", self.kind, self.of),
            n => format!("{n} × {}", self.kind),
        }
    }
}

/// Returns the marks of a run, ordered by time.
pub(super) fn marks(charts: &ChartData) -> Vec<ActionMark> {
    let mark = |act: &ClusterAction| {
        let (kind, of) = match &act.what {
            Deed::Action(action, Some(pod)) => (action_name(*action, true), words::short_pod(pod).to_owned()),
            Deed::Action(action, None) => (action_name(*action, false), String::new()),
            Deed::Refused(action, pod) => {
                let pod = pod.as_deref().map(words::short_pod).unwrap_or_default();
                ("refused:", format!("{} {pod}", action_name(*action, true)).trim_end().to_owned())
            }
            Deed::CommandStarted(words) => (COMMAND, words.join(" ")),
            Deed::CommandEnded(Some(0)) => ("command done", String::new()),
            Deed::CommandEnded(_) => ("command failed", String::new()),
        };
        ActionMark { at_s: vec![act.at_s], kind, of }
    };
    charts.actions.iter().map(mark).collect()
}

/// Returns the words for an action. The pod's name follows them if the action names a pod.
const fn action_name(action: ActionName, names_pod: bool) -> &'static str {
    match action {
        ActionName::DeletePod => "delete",
        ActionName::Evict => "evict",
        ActionName::Crash => "crash",
        ActionName::Relabel if names_pod => "relabel",
        ActionName::Relabel => "relabel undone",
        ActionName::RollingRestart => "rolling restart",
        ActionName::SetImage => "new image",
        ActionName::Patch => "patch",
        ActionName::Scale => "scale",
        ActionName::Drain if names_pod => "drain: evict",
        ActionName::Drain => "drain",
        ActionName::NodeShutdown => "node shutdown",
        ActionName::RestartNodeAgent => "node agent restarted",
        ActionName::Exec => "command",
        ActionName::Observe => "observe",
    }
}

/// Marks and their names, positioned above a plot.
pub(super) struct Placed {
    marks: Vec<(f64, String, usize)>,
    lines: Vec<f64>,
    rows: usize,
    /// Right end of the names, in pixels.
    right: f64,
}

impl Placed {
    /// Positions the marks that the axis shows. Marks of the same kind share a name if space is short.
    pub(super) fn on(canvas: &Canvas, marks: &[ActionMark], x: &Axis) -> Self {
        let shown: Vec<ActionMark> =
            marks.iter().filter(|m| m.at_s.iter().any(|at| x.shows(*at))).cloned().collect();
        let is_same =
            |last: &ActionMark, mark: &ActionMark| x.px(mark.at_s[0]) - x.px(last.at_s[0]) < SAME_PX;
        let mut names = joined(shown, is_same);
        let mut rows = rows_of(canvas, &names, x);
        if rows.iter().any(|row| *row >= ROWS) {
            names = joined(names, |_, _| true);
            rows = rows_of(canvas, &names, x);
        }
        let lines = names.iter().flat_map(|mark| mark.at_s.iter().map(|at| x.px(*at))).collect();
        let of = |(mark, row): (&ActionMark, &usize)| (x.px(mark.at_s[0]), fitted(canvas, mark), *row);
        let rows_needed = rows.iter().max().map_or(0, |row| row + 1);
        Self {
            marks: names.iter().zip(&rows).map(of).collect(),
            lines,
            rows: rows_needed,
            right: x.px(f64::MAX),
        }
    }

    /// Returns the height that the names need above the plot.
    pub(super) fn height(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.rows as f64 * LANE + 6.0 }
    }

    /// Draws a line across a plot at each mark.
    pub(super) fn lines(&self, canvas: &mut Canvas, plot: Rect) {
        let (width, color) = if self.lines.len() > BOLD { (1.0, palette::AXIS) } else { (1.5, palette::INK) };
        for px in &self.lines {
            canvas.rule((*px, plot.top), (*px, plot.bottom), width, color, Dash::Dashed);
        }
    }

    /// Draws the names above `top`.
    pub(super) fn names(&self, canvas: &mut Canvas, top: f64) {
        let baseline = |row: usize| top - 8.0 - row as f64 * LANE;
        for px in &self.lines {
            canvas.rule((*px, top - 8.0), (*px, top), 1.5, palette::INK, Dash::Solid);
        }
        for (px, _, row) in &self.marks {
            canvas.rule((*px, baseline(*row) - 13.0), (*px, top), 1.5, palette::INK, Dash::Solid);
        }
        for (px, name, row) in &self.marks {
            let width = canvas.text_width(name, &SMALL);
            let left = (px + 6.0).min(self.right - width);
            let paper = Rect {
                left: left - 2.0,
                right: left + width + 2.0,
                top: baseline(*row) - 14.0,
                bottom: baseline(*row) + 4.0,
            };
            canvas.fill(paper, palette::WHITE, FillPattern::Plain);
            canvas.text(left, baseline(*row), name, &SMALL);
        }
    }
}

/// Merges neighbouring marks for which `is_alike` returns true.
fn joined(marks: Vec<ActionMark>, is_alike: impl Fn(&ActionMark, &ActionMark) -> bool) -> Vec<ActionMark> {
    let mut out: Vec<ActionMark> = Vec::new();
    for mark in marks {
        match out.last_mut() {
            Some(last) if last.kind == mark.kind && last.kind != COMMAND && is_alike(last, &mark) => {
                last.at_s.extend(mark.at_s);
            }
            _ => out.push(mark),
        }
    }
    out
}

fn rows_of(canvas: &Canvas, marks: &[ActionMark], x: &Axis) -> Vec<usize> {
    let of =
        |mark: &ActionMark| (x.px(mark.at_s[0]), canvas.text_width(&fitted(canvas, mark), &SMALL) + 14.0);
    frame::lanes(&marks.iter().map(of).collect::<Vec<_>>())
}

fn fitted(canvas: &Canvas, mark: &ActionMark) -> String {
    canvas.fit(&mark.name(), &SMALL, NAME_PX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(actions: &[(f64, Deed)]) -> ChartData {
        let actions =
            actions.iter().map(|(at_s, what)| ClusterAction { at_s: *at_s, what: what.clone() }).collect();
        ChartData { actions, ..ChartData::default() }
    }

    fn delete(pod: &str) -> Deed {
        Deed::Action(ActionName::DeletePod, Some(pod.to_owned()))
    }

    #[test]
    fn every_action_has_a_name() {
        let command = ["kubectl", "rollout", "restart", "deploy/web"].map(str::to_owned).to_vec();
        let charts = run(&[
            (1.0, delete("web-7d4b9-b5f2w")),
            (2.0, Deed::Action(ActionName::RollingRestart, None)),
            (3.0, Deed::Action(ActionName::Crash, Some("web-7d4b9-k5mkj".to_owned()))),
            (4.0, Deed::CommandStarted(command)),
            (5.0, Deed::CommandEnded(Some(0))),
            (6.0, Deed::CommandEnded(None)),
            (7.0, Deed::Refused(ActionName::Evict, Some("web-7d4b9-clpr4".to_owned()))),
        ]);
        let names: Vec<String> = marks(&charts).iter().map(ActionMark::name).collect();
        assert_eq!(
            names,
            [
                "delete b5f2w",
                "rolling restart",
                "crash k5mkj",
                "$ kubectl rollout restart deploy/web",
                "command done",
                "command failed",
                "refused: evict clpr4"
            ]
        );
    }

    #[test]
    fn crowded_marks_share_one_name() {
        let canvas = Canvas::new(1600, 100).unwrap();
        let x = Axis::linear(0.0, 100.0, 100.0, 1560.0);
        let few = run(&[(10.0, delete("a-1")), (30.0, delete("a-2")), (30.05, delete("a-3"))]);
        let placed = Placed::on(&canvas, &marks(&few), &x);
        let names = |placed: &Placed| placed.marks.iter().map(|m| m.1.clone()).collect::<Vec<_>>();
        assert_eq!(names(&placed), ["delete 1", "2 × delete"]);
        let many: Vec<(f64, Deed)> = (0..60).map(|i| (f64::from(i), delete("web-b5f2w"))).collect();
        let placed = Placed::on(&canvas, &marks(&run(&many)), &x);
        assert_eq!((names(&placed), placed.lines.len()), (vec!["60 × delete".to_owned()], 60));
    }
}

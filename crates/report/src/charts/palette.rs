//! Colours and patterns. The colours are Okabe and Ito's set, which colour-blind people can distinguish; each has a
//! pattern that also works in greyscale print.

use rolldrop_canvas::{FillPattern, RGBColor};
pub(super) use rolldrop_canvas::{INK, WHITE};
use rolldrop_record::Outcome;

pub(super) const MUTED: RGBColor = RGBColor(95, 99, 104);
pub(super) const GRID: RGBColor = RGBColor(228, 230, 233);
pub(super) const AXIS: RGBColor = RGBColor(140, 144, 149);
pub(super) const ALARM: RGBColor = RGBColor(176, 0, 32);
/// Certain part of a window: up to its lower bound.
pub(super) const WINDOW: RGBColor = RGBColor(205, 217, 232);
/// Possible part of a window, drawn striped: between its lower and upper bounds.
pub(super) const WINDOW_MAYBE: RGBColor = RGBColor(214, 224, 236);

/// Shades for counts, from low to high; each is darker than the previous one.
pub(super) const SHADES: [RGBColor; 6] = [
    RGBColor(158, 202, 225),
    RGBColor(107, 174, 214),
    RGBColor(66, 146, 198),
    RGBColor(33, 113, 181),
    RGBColor(8, 81, 156),
    RGBColor(8, 40, 90),
];
/// Area between two bounds.
pub(super) const BAND: RGBColor = RGBColor(247, 205, 173);
/// Period in which a consumer still routes to a terminating pod.
pub(super) const IN_RULES: RGBColor = RGBColor(92, 134, 190);
/// Phases of a pod: the less the pod serves, the darker the colour.
pub(super) const STARTING: RGBColor = RGBColor(244, 245, 247);
pub(super) const READY: RGBColor = RGBColor(208, 214, 220);
pub(super) const SLEEPING: RGBColor = RGBColor(158, 168, 180);
pub(super) const STOPPING: RGBColor = RGBColor(112, 120, 132);
pub(super) const REFUSING: RGBColor = RGBColor(48, 50, 56);

const ORANGE: RGBColor = RGBColor(230, 159, 0);
const SKY: RGBColor = RGBColor(86, 180, 233);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const YELLOW: RGBColor = RGBColor(240, 228, 66);
const BLUE: RGBColor = RGBColor(0, 114, 178);
const VERMILLION: RGBColor = RGBColor(213, 94, 0);
const PURPLE: RGBColor = RGBColor(204, 121, 167);
const BLACK: RGBColor = RGBColor(40, 40, 40);

/// Answered requests.
pub(super) const ANSWERED: RGBColor = RGBColor(158, 174, 183);
/// Streams that were still open when the run ended.
pub(super) const OPEN_AT_END: (RGBColor, FillPattern) = (GRID, FillPattern::Dotted);
/// Individual answered requests, drawn as thin marks.
pub(super) const ANSWERED_MARK: RGBColor = RGBColor(60, 82, 94);
/// Steady state, in the latency chart.
pub(super) const STEADY: RGBColor = SKY;
/// Steady state, for lines and text.
pub(super) const STEADY_DARK: RGBColor = BLUE;
/// Requests near a termination, in the latency chart.
pub(super) const DISRUPTED: RGBColor = VERMILLION;

/// Returns the colour and pattern of an outcome, which are the same in all charts.
pub(super) const fn outcome(outcome: Outcome) -> (RGBColor, FillPattern) {
    match outcome {
        Outcome::ConnectRefused => (VERMILLION, FillPattern::Plain),
        Outcome::ConnectTimeout => (BLUE, FillPattern::Rising),
        Outcome::ResetBeforeResponse => (ORANGE, FillPattern::Falling),
        Outcome::EofBeforeResponse => (SKY, FillPattern::Level),
        Outcome::ResetMidResponse => (PURPLE, FillPattern::Crossed),
        Outcome::TruncatedBody => (YELLOW, FillPattern::Dotted),
        Outcome::ResponseTimeout => (BLACK, FillPattern::Plain),
        Outcome::HttpError => (GREEN, FillPattern::Upright),
        Outcome::BodyTimeout => (BLACK, FillPattern::Rising),
        Outcome::ConnectUnreachable => (BLUE, FillPattern::Plain),
        Outcome::ConnectError => (VERMILLION, FillPattern::Dotted),
        Outcome::DnsError => (YELLOW, FillPattern::Crossed),
        Outcome::TlsError => (PURPLE, FillPattern::Plain),
        Outcome::H2RefusedStream => (GREEN, FillPattern::Falling),
        Outcome::H2Goaway => (GREEN, FillPattern::Dotted),
        Outcome::ProtocolError => (ORANGE, FillPattern::Plain),
        Outcome::StreamCut => (VERMILLION, FillPattern::Rising),
        Outcome::StreamUnfinished => (YELLOW, FillPattern::Upright),
        Outcome::StreamAborted => (PURPLE, FillPattern::Level),
        Outcome::StreamStalled => (BLACK, FillPattern::Upright),
        Outcome::Ok => (ANSWERED, FillPattern::Plain),
        Outcome::NotSent => (AXIS, FillPattern::Plain),
        Outcome::Cancelled => (AXIS, FillPattern::Level),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_outcomes_look_alike() {
        let looks: BTreeSet<_> = Outcome::ALL
            .iter()
            .map(|&o| (outcome(o).0.0, outcome(o).0.1, format!("{:?}", outcome(o).1)))
            .collect();
        assert_eq!(looks.len(), Outcome::ALL.len());
    }
}

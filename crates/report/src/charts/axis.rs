//! Scales, which convert values to pixels and choose ticks.

/// A scale along one side of a plot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    start_px: f64,
    end_px: f64,
    kind: AxisScale,
}

#[derive(Clone, Copy, Debug)]
enum AxisScale {
    Linear,
    Log,
    Broken(Break),
}

/// The range that a broken scale omits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Break {
    /// Start of the omitted range, in the scale's unit.
    pub(super) from: f64,
    /// End of the omitted range, where the scale continues.
    pub(super) to: f64,
}

/// Share of a broken scale's length that lies before the break.
const BEFORE_BREAK: f64 = 0.7;
/// Width of the gap at a break, in pixels.
const BREAK_PX: f64 = 18.0;

impl Axis {
    /// Creates a linear scale. An empty or infinite range becomes a range of length 1.
    pub(super) fn linear(from: f64, to: f64, start_px: f64, end_px: f64) -> Self {
        let from = if from.is_finite() { from } else { 0.0 };
        let to = if to.is_finite() && to > from { to } else { from + 1.0 };
        Self { from, to, start_px, end_px, kind: AxisScale::Linear }
    }

    /// Creates a linear scale that may omit a range.
    pub(super) fn broken(from: f64, left_out: Option<Break>, to: f64, start_px: f64, end_px: f64) -> Self {
        let Some(left_out) = left_out else { return Self::linear(from, to, start_px, end_px) };
        Self { from, to, start_px, end_px, kind: AxisScale::Broken(left_out) }
    }

    /// Creates a logarithmic scale for positive values. An empty or infinite range becomes a factor of 10.
    pub(super) fn log(from: f64, to: f64, start_px: f64, end_px: f64) -> Self {
        let from = from.max(1e-6);
        let to = if to.is_finite() && to > from { to } else { from * 10.0 };
        Self { from, to, start_px, end_px, kind: AxisScale::Log }
    }

    /// Returns the pixel position of a value. Values outside the range are placed at its edge.
    pub(super) fn px(&self, value: f64) -> f64 {
        let share = match self.kind {
            AxisScale::Linear => (value - self.from) / (self.to - self.from),
            AxisScale::Log => (value.max(1e-9) / self.from).ln() / (self.to / self.from).ln(),
            AxisScale::Broken(_) => {
                return self.parts().map_or(self.start_px, |[before, after]| {
                    if value < after.from { before.px(value) } else { after.px(value) }
                });
            }
        };
        self.start_px + share.clamp(0.0, 1.0) * (self.end_px - self.start_px)
    }

    /// Returns the pixel positions of the gap, if there is one.
    pub(super) fn gap_px(&self) -> Option<(f64, f64)> {
        self.parts().map(|[before, after]| (before.end_px, after.start_px))
    }

    /// Returns the scales before and after the break, if there is one.
    fn parts(&self) -> Option<[Self; 2]> {
        let AxisScale::Broken(left_out) = self.kind else { return None };
        let split = self.start_px + BEFORE_BREAK * (self.end_px - self.start_px);
        Some([
            Self::linear(self.from, left_out.from, self.start_px, split - BREAK_PX / 2.0),
            Self::linear(left_out.to, self.to, split + BREAK_PX / 2.0, self.end_px),
        ])
    }

    /// Returns true if the scale shows a value.
    pub(super) fn shows(&self, value: f64) -> bool {
        (self.from..=self.to).contains(&value)
    }

    /// Returns about `most` ticks with their labels.
    pub(super) fn ticks(&self, most: u32) -> Vec<(f64, String)> {
        match self.kind {
            AxisScale::Linear => {
                let step = nice_step((self.to - self.from) / f64::from(most.max(1)));
                multiples(step, self.from, self.to).into_iter().map(|v| (v, label(v, step))).collect()
            }
            AxisScale::Log => {
                let decades = (self.to / self.from).log10();
                let mantissas: &[f64] =
                    if decades <= f64::from(most) / 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let mut ticks = Vec::new();
                let mut power = 10_f64.powf(self.from.log10().floor());
                while power <= self.to * 1.000_001 {
                    for value in mantissas.iter().map(|m| m * power) {
                        if value >= self.from * 0.999_999 && value <= self.to * 1.000_001 {
                            ticks.push((value, label(value, value)));
                        }
                    }
                    power *= 10.0;
                }
                ticks
            }
            AxisScale::Broken(_) => self.parts().map_or_else(Vec::new, |[before, after]| {
                let mut ticks = before.ticks(most * 2 / 3);
                ticks.extend(after.ticks(most / 2));
                ticks
            }),
        }
    }

    /// Returns about `most` ticks at whole numbers.
    pub(super) fn whole_ticks(&self, most: u32) -> Vec<(f64, String)> {
        let step = nice_step((self.to - self.from) / f64::from(most.max(1))).max(1.0);
        multiples(step, self.from, self.to).into_iter().map(|v| (v, label(v, step))).collect()
    }
}

/// Returns the right end of the axis, and the range to omit before it. `end` is the time of the last request event, and
/// `marks` are the times of the stages.
pub(super) fn right_end(end: f64, marks: &[f64]) -> (f64, Option<Break>) {
    // The factors leave room for the last mark's label on the right.
    let near_end = |marks: &mut dyn Iterator<Item = f64>| marks.map(|t| t * 1.14).fold(end * 1.06, f64::max);
    let far_from = marks.iter().copied().filter(|&t| t > end.max(0.1) * 2.5).fold(f64::INFINITY, f64::min);
    let near_s = near_end(&mut marks.iter().copied().filter(|&t| t < far_from));
    let far_to = marks.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if end <= 0.0 || far_from < near_s * 2.0 || far_from.is_infinite() {
        let all = near_end(&mut marks.iter().copied());
        return (if all > 0.0 { all } else { 1.0 }, None);
    }
    // The part after the break is not drawn at a finer scale than the part before it.
    let width = (near_s * 0.5).max((far_to - far_from) / 0.3);
    let from = far_from - 0.1 * width;
    if from <= near_s {
        return (near_end(&mut marks.iter().copied()), None);
    }
    (from + width, Some(Break { from: near_s, to: from }))
}

/// Returns the index of a value's bin.
pub(super) fn bin_of(at: f64, bin: f64) -> i64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast saturates, and an axis has at most a few hundred bins"
    )]
    let number = (at / bin).floor() as i64;
    number
}

/// Returns the smallest number of the form 1, 2 or 5 × a power of ten that is at least `least`.
pub(super) fn nice_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|&v| v >= least * 0.999_999)
        .unwrap_or(10.0 * power)
}

fn multiples(step: f64, from: f64, to: f64) -> Vec<f64> {
    let mut out = Vec::new();
    let mut factor = (from / step - 1e-6).ceil();
    while factor * step <= to + step * 1e-6 {
        out.push(factor * step);
        factor += 1.0;
    }
    out
}

/// Formats a tick's label with as many decimals as the step requires.
fn label(value: f64, step: f64) -> String {
    let value = if value.abs() < step * 1e-6 { 0.0 } else { value };
    let decimals: usize = match step {
        s if s >= 0.999 => 0,
        s if s >= 0.0999 => 1,
        s if s >= 0.00999 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    match text.parse::<u64>() {
        Ok(n) => crate::format::count(n),
        Err(_) => text.replace('-', "−"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_maps_range_and_clamps_values_outside() {
        let axis = Axis::linear(-1.0, 3.0, 100.0, 500.0);
        assert_eq!([axis.px(-1.0), axis.px(1.0), axis.px(3.0), axis.px(9.0)], [100.0, 300.0, 500.0, 500.0]);
        let log = Axis::log(0.1, 1000.0, 0.0, 400.0);
        assert!((log.px(1.0) - 100.0).abs() < 1e-6 && (log.px(100.0) - 300.0).abs() < 1e-6);
        for to in [2.0, f64::INFINITY, f64::NAN] {
            assert!((Axis::linear(2.0, to, 0.0, 1.0).px(2.5) - 0.5).abs() < 1e-9);
        }
    }

    #[test]
    fn broken_axis_has_two_parts() {
        let axis = Axis::broken(0.0, Some(Break { from: 0.2, to: 3.0 }), 3.1, 0.0, 1000.0);
        let (before, after) = axis.gap_px().unwrap();
        assert_eq!(
            [axis.px(0.0), axis.px(0.2), axis.px(2.0), axis.px(3.0), axis.px(3.1)],
            [0.0, before, before, after, 1000.0]
        );
        assert!(axis.ticks(9).iter().all(|(v, _)| *v <= 0.2 || *v >= 3.0));
        assert_eq!(Axis::linear(0.0, 1.0, 0.0, 1.0).gap_px(), None);
    }

    #[test]
    fn ticks_are_round_numbers() {
        let labels = |ticks: Vec<(f64, String)>| ticks.into_iter().map(|t| t.1).collect::<Vec<_>>();
        assert_eq!(
            labels(Axis::linear(-0.02, 0.2, 0.0, 1.0).ticks(6)),
            ["0.00", "0.05", "0.10", "0.15", "0.20"]
        );
        assert_eq!(labels(Axis::linear(-1.0, 1.0, 0.0, 1.0).ticks(4)), ["−1.0", "−0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(labels(Axis::linear(0.0, 2.0, 0.0, 1.0).whole_ticks(4)), ["0", "1", "2"]);
        assert_eq!(labels(Axis::log(0.5, 20.0, 0.0, 1.0).ticks(9)), ["0.5", "1", "2", "5", "10", "20"]);
        assert_eq!(
            labels(Axis::log(0.1, 10_000.0, 0.0, 1.0).ticks(6)),
            ["0.1", "1", "10", "100", "1,000", "10,000"]
        );
    }
}

//! Whether a row holds. Scope: plain values; no clock, no process.
//! Owns: the bounds and the judgement.
//! Invariants: a row is judged by the median of the ratios of its rounds; one whose rounds spread too far, are too few, or
//! show the load instead of the server is not judged; one with a run that was not clean fails.
//! Not here: where the figures come from (`run`).

use std::fmt;

use serde::Serialize;

use super::arm::{Figure, Figures};
use crate::measure::{Spread, median};

/// A core that is busier is the limit, percent.
pub const BUSY_PERCENT: f64 = 95.0;

/// What a ratio, or a figure alone, has to be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// No further from 1 than this.
    Within(f64),
}

impl Bound {
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtMost(most) => value <= most,
            Bound::AtLeast(least) => value >= least,
            Bound::Within(distance) => (value - 1.0).abs() <= distance,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtMost(most) if *most >= 1_000.0 => write!(f, "<= {most:.0}"),
            Bound::AtMost(most) => write!(f, "<= {most:.2}"),
            Bound::AtLeast(least) => write!(f, ">= {least:.2}"),
            Bound::Within(distance) => write!(f, "1 +- {distance:.2}"),
        }
    }
}

/// What a row asks for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Asked {
    pub figure: Figure,
    /// What is judged is how much more the arm has than what it is compared with, not how many times as much.
    pub difference: bool,
    pub must: Option<Bound>,
    pub aim: Option<Bound>,
    /// Also good: the core over 95 % busy at no more than this many CPU seconds for 10^9 bytes of payload.
    pub or_busy_s_per_gb: Option<f64>,
    /// Rounds that are needed.
    pub rounds: usize,
    /// Rounds that spread further are not judged, percent.
    pub spread_max_percent: f64,
}

/// One round of a row: the arm, and what it is compared with.
pub type Round = (Figures, Option<Figures>);

/// Why an arm has no rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lacking {
    /// It is not on this machine, or not in this build.
    Missing(String),
    /// It failed.
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Holds,
    FallsShort,
    /// The figures do not tell.
    NotJudged,
    /// The row has an aim and no must.
    Stated,
    /// It is not part of this run, or what it needs is not built.
    NotRun,
    /// A load failed, or was refused, lost or left unanswered.
    Failed,
}

impl Outcome {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Holds => "holds",
            Outcome::FallsShort => "FALLS SHORT",
            Outcome::NotJudged => "not judged",
            Outcome::Stated => "stated",
            Outcome::NotRun => "not run",
            Outcome::Failed => "FAILED",
        }
    }
}

/// The judgement of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged {
    pub outcome: Outcome,
    /// Ratios of the rounds, or the figure itself where there is nothing to compare with.
    pub rounds: Vec<f64>,
    pub median: Option<f64>,
    /// Half of the range of the rounds over their median, percent.
    pub spread_percent: Option<f64>,
    pub aim_reached: Option<bool>,
    /// Medians of the busiest thread of the arm and of what it is compared with, percent.
    pub core_busy_percent: (f64, Option<f64>),
    /// In words, where the outcome does not say all.
    pub why: Option<String>,
}

impl Judged {
    /// A row without figures.
    #[must_use]
    pub fn without(outcome: Outcome, why: String) -> Judged {
        Judged {
            outcome,
            rounds: Vec::new(),
            median: None,
            spread_percent: None,
            aim_reached: None,
            core_busy_percent: (0.0, None),
            why: Some(why),
        }
    }
}

/// The ratio or the difference of each round, as far as both sides have the figure.
#[must_use]
pub fn ratios(asked: &Asked, rounds: &[Round]) -> Vec<f64> {
    let figure = asked.figure;
    let ratio = |(of, against): &Round| match against {
        Some(against) if asked.difference => Some(figure.of(of)? - figure.of(against)?),
        Some(against) => Some(figure.of(of)? / figure.of(against)?),
        None => figure.of(of),
    };
    rounds.iter().filter_map(ratio).collect()
}

/// Judges a row.
#[must_use]
pub fn judge(asked: &Asked, rounds: &[Round], lacking: Option<&Lacking>) -> Judged {
    match lacking {
        Some(Lacking::Missing(why)) => return Judged::without(Outcome::NotJudged, why.clone()),
        Some(Lacking::Failed(why)) => return Judged::without(Outcome::Failed, why.clone()),
        None => {}
    }
    let found = ratios(asked, rounds);
    let Some(spread) = Spread::of(found.iter().copied()) else {
        return Judged::without(Outcome::NotJudged, "no round has the figure".to_owned());
    };
    let (outcome, why) = outcome(asked, rounds, &spread);
    let judged = !matches!(outcome, Outcome::NotJudged | Outcome::Failed);
    let busy = |of: &dyn Fn(&Round) -> Option<f64>| medians(rounds.iter().filter_map(of));
    Judged {
        outcome,
        rounds: found,
        median: Some(spread.median),
        spread_percent: Some(spread.percent()),
        aim_reached: asked.aim.filter(|_| judged).map(|aim| aim.holds(spread.median)),
        core_busy_percent: (
            busy(&|(of, _)| Some(of.core_busy_percent)).unwrap_or(0.0),
            busy(&|(_, against)| against.as_ref().map(|against| against.core_busy_percent)),
        ),
        why,
    }
}

fn medians(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(&values))
}

fn outcome(asked: &Asked, rounds: &[Round], spread: &Spread) -> (Outcome, Option<String>) {
    let not_judged = |why: String| (Outcome::NotJudged, Some(why));
    let dirty = |(of, against): &Round| !of.clean || against.as_ref().is_some_and(|against| !against.clean);
    if rounds.iter().any(dirty) {
        let why = "a batch was refused, lost, repeated or left unanswered";
        return (Outcome::Failed, Some(why.to_owned()));
    }
    if spread.trials < asked.rounds {
        return not_judged(format!("{} of {} rounds have figures", spread.trials, asked.rounds));
    }
    if let Some(why) = busy_enough(asked, rounds) {
        return (Outcome::Holds, Some(why));
    }
    if spread.percent() > asked.spread_max_percent {
        return not_judged(format!(
            "rounds spread {:.0} %, more than {:.0}",
            spread.percent(),
            asked.spread_max_percent
        ));
    }
    let Some(must) = asked.must else { return (Outcome::Stated, None) };
    let holds = must.holds(spread.median);
    // A rate that the load bounds is not the server's: such a reference flatters, such an arm is belittled.
    let bounded = if holds {
        load_bound(rounds.iter().filter_map(|(_, against)| against.as_ref()))
    } else {
        load_bound(rounds.iter().map(|(of, _)| of))
    };
    if let Some(core) = bounded.filter(|_| asked.figure.is_rate()) {
        let side = if holds { "of what it is compared with" } else { "of the broker" };
        return not_judged(format!(
            "core not busy enough: the load's CPU was full, the core {side} {core:.0} %"
        ));
    }
    (if holds { Outcome::Holds } else { Outcome::FallsShort }, None)
}

/// The core is the limit and cheap enough for that.
fn busy_enough(asked: &Asked, rounds: &[Round]) -> Option<String> {
    let most = asked.or_busy_s_per_gb?;
    let costs = Spread::of(rounds.iter().filter_map(|(of, _)| of.s_per_gb))?;
    let busy = medians(rounds.iter().map(|(of, _)| of.core_busy_percent))?;
    let good = busy > BUSY_PERCENT
        && costs.median <= most
        && costs.percent() <= asked.spread_max_percent
        && costs.trials >= asked.rounds;
    good.then(|| format!("core {busy:.0} % busy at {:.3} s/GB ({most:.2} asked)", costs.median))
}

/// How busy the servers' core was when it was the load's CPU that was full.
fn load_bound<'f>(figures: impl Iterator<Item = &'f Figures> + Clone) -> Option<f64> {
    let load = medians(figures.clone().map(|figures| figures.load_busy_percent))?;
    let core = medians(figures.map(|figures| figures.core_busy_percent))?;
    (load > BUSY_PERCENT && core < BUSY_PERCENT).then_some(core)
}

/// More rounds would help: the ratios spread further than `percent`.
#[must_use]
pub fn is_unsettled(asked: &Asked, rounds: &[Round], percent: f64) -> bool {
    Spread::of(ratios(asked, rounds)).is_some_and(|spread| spread.percent() > percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(s_per_gb: f64) -> Figures {
        Figures { s_per_gb: Some(s_per_gb), core_busy_percent: 97.0, clean: true, ..Figures::default() }
    }

    fn rate(mb_per_s: f64, core_busy_percent: f64, load_busy_percent: f64) -> Figures {
        let busy = Figures { core_busy_percent, load_busy_percent, ..cost(0.5) };
        Figures { mb_per_s, ..busy }
    }

    fn asked(must: Bound) -> Asked {
        Asked {
            figure: Figure::CostPerByte,
            difference: false,
            must: Some(must),
            aim: Some(Bound::AtMost(1.05)),
            or_busy_s_per_gb: None,
            rounds: 3,
            spread_max_percent: 10.0,
        }
    }

    fn rates(must: Bound) -> Asked {
        Asked { figure: Figure::BytesPerSecond, aim: None, ..asked(must) }
    }

    fn pairs(of: &[f64], against: f64) -> Vec<Round> {
        of.iter().map(|of| (cost(*of), Some(cost(against)))).collect()
    }

    #[test]
    fn bounds_include_their_edge() {
        assert!(Bound::AtMost(1.2).holds(1.2) && !Bound::AtMost(1.2).holds(1.201));
        assert!(Bound::AtLeast(0.9).holds(0.9) && !Bound::AtLeast(0.9).holds(0.899));
        assert!(Bound::Within(0.25).holds(1.25) && Bound::Within(0.25).holds(0.75));
        assert!(!Bound::Within(0.25).holds(1.26) && !Bound::Within(0.25).holds(0.74));
        assert_eq!(Bound::AtMost(65_536.0).to_string(), "<= 65536");
        assert_eq!(Bound::Within(0.1).to_string(), "1 +- 0.10");
    }

    #[test]
    fn a_row_holds_or_falls_short_by_the_median_of_the_ratios_of_its_rounds() {
        let judged = judge(&asked(Bound::AtMost(1.2)), &pairs(&[0.36, 0.33, 0.35], 0.3), None);
        assert_eq!((judged.outcome, judged.aim_reached), (Outcome::Holds, Some(false)));
        assert!((judged.median.unwrap() - 0.35 / 0.3).abs() < 1e-9 && judged.rounds.len() == 3);
        assert_eq!(judged.core_busy_percent, (97.0, Some(97.0)));
        let judged = judge(&asked(Bound::AtMost(1.2)), &pairs(&[0.37, 0.33, 0.37], 0.3), None);
        assert_eq!((judged.outcome, judged.why), (Outcome::FallsShort, None));
        let good = judge(&asked(Bound::AtMost(1.2)), &pairs(&[0.3, 0.31, 0.3], 0.3), None);
        assert_eq!(good.aim_reached, Some(true));
        // A machine that is half as fast in one round changes no ratio.
        let mut drifted = pairs(&[0.33, 0.33], 0.3);
        drifted.push((cost(0.66), Some(cost(0.6))));
        assert_eq!(judge(&asked(Bound::AtMost(1.2)), &drifted, None).outcome, Outcome::Holds);
    }

    #[test]
    fn rounds_that_spread_too_far_or_are_too_few_are_not_judged() {
        let wide = judge(&asked(Bound::AtMost(9.0)), &pairs(&[0.3, 0.4, 0.5], 0.3), None);
        assert_eq!((wide.outcome, wide.aim_reached), (Outcome::NotJudged, None));
        assert!(wide.why.unwrap().contains("spread 25 %") && wide.median.is_some());
        let few = judge(&asked(Bound::AtMost(9.0)), &pairs(&[0.3, 0.3], 0.3), None);
        assert_eq!(few.outcome, Outcome::NotJudged);
        assert!(few.why.unwrap().starts_with("2 of 3"));
        assert_eq!(judge(&asked(Bound::AtMost(9.0)), &[], None).outcome, Outcome::NotJudged);
    }

    #[test]
    fn a_run_that_was_not_clean_fails_whatever_it_shows() {
        let mut rounds = pairs(&[0.1, 0.1, 0.1], 0.3);
        rounds[1].1.as_mut().unwrap().clean = false;
        assert_eq!(judge(&asked(Bound::AtMost(1.2)), &rounds, None).outcome, Outcome::Failed);
        let lacking = |lacking| judge(&asked(Bound::AtMost(1.2)), &[], Some(&lacking)).outcome;
        assert_eq!(lacking(Lacking::Missing("no redis".to_owned())), Outcome::NotJudged);
        assert_eq!(lacking(Lacking::Failed("it ended".to_owned())), Outcome::Failed);
    }

    #[test]
    fn a_rate_that_the_load_bounds_flatters_nobody() {
        let rounds = |of: Figures, against: Figures| vec![(of, Some(against)); 3];
        let must = rates(Bound::AtLeast(0.85));
        // The sink could take more: that the broker keeps up with it says nothing.
        let judged = judge(&must, &rounds(rate(90.0, 98.0, 80.0), rate(100.0, 70.0, 99.0)), None);
        assert_eq!(judged.outcome, Outcome::NotJudged);
        assert!(judged.why.unwrap().contains("core not busy enough"));
        // It falls short even so.
        let judged = judge(&must, &rounds(rate(80.0, 98.0, 80.0), rate(100.0, 70.0, 99.0)), None);
        assert_eq!(judged.outcome, Outcome::FallsShort);
        // The broker could take more.
        let judged = judge(&must, &rounds(rate(80.0, 70.0, 99.0), rate(100.0, 98.0, 80.0)), None);
        assert_eq!(judged.outcome, Outcome::NotJudged);
        let judged = judge(&must, &rounds(rate(90.0, 98.0, 99.0), rate(100.0, 98.0, 99.0)), None);
        assert_eq!(judged.outcome, Outcome::Holds);
    }

    #[test]
    fn a_busy_core_that_is_cheap_holds_without_the_disk() {
        let must = Asked { or_busy_s_per_gb: Some(0.4), ..rates(Bound::AtLeast(0.9)) };
        let disk = Figures { mb_per_s: 5_000.0, clean: true, ..Figures::default() };
        let rounds = |cost: f64, busy: f64| {
            let of = Figures { s_per_gb: Some(cost), ..rate(2_000.0, busy, 60.0) };
            vec![(of, Some(disk)); 3]
        };
        let judged = judge(&must, &rounds(0.4, 97.0), None);
        assert_eq!(judged.outcome, Outcome::Holds);
        assert!(judged.why.unwrap().contains("97 % busy at 0.400 s/GB"));
        assert_eq!(judge(&must, &rounds(0.41, 97.0), None).outcome, Outcome::FallsShort);
        assert_eq!(judge(&must, &rounds(0.3, 95.0), None).outcome, Outcome::FallsShort);
    }

    #[test]
    fn a_figure_alone_is_stated_against_its_aim() {
        let row = Asked {
            figure: Figure::IdleConnectionBytes,
            must: None,
            aim: Some(Bound::AtMost(65_536.0)),
            ..asked(Bound::AtMost(1.0))
        };
        let figures = Figures { idle_connection_bytes: Some(50_000.0), clean: true, ..Figures::default() };
        let judged = judge(&row, &[(figures, None); 3], None);
        assert_eq!((judged.outcome, judged.aim_reached), (Outcome::Stated, Some(true)));
        assert_eq!((judged.median, judged.core_busy_percent.1), (Some(50_000.0), None));
    }

    #[test]
    fn a_row_is_unsettled_while_its_ratios_differ() {
        let row = asked(Bound::AtMost(1.2));
        assert!(is_unsettled(&row, &pairs(&[0.3, 0.4], 0.3), 5.0));
        assert!(!is_unsettled(&row, &pairs(&[0.3, 0.31], 0.3), 5.0));
        assert!(!is_unsettled(&row, &[], 5.0));
    }

    #[test]
    fn a_difference_is_what_the_arm_has_more() {
        let more = Asked { figure: Figure::P50, difference: true, ..asked(Bound::AtMost(10.0)) };
        let of = |p50_us| Figures { p50_us, clean: true, ..Figures::default() };
        let judged = judge(&more, &[(of(109.0), Some(of(100.0))); 3], None);
        assert_eq!((judged.outcome, judged.median), (Outcome::Holds, Some(9.0)));
    }
}

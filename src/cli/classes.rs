//! What a load that no analysis has seen yet has lost.

use rolldrop_analysis::Class;
use rolldrop_load::{Counts, ErrorStatuses};
use rolldrop_record::Outcome;

/// How many requests there are of each class; one may come several times.
pub(super) fn by_class(outcomes: &Counts, errors: &ErrorStatuses) -> impl Iterator<Item = (Class, u64)> {
    let of_answers = |status, grpc| Class::of_answer(Outcome::HttpError, status, grpc);
    let others = outcomes.iter().filter(|(outcome, _)| *outcome != Outcome::HttpError);
    let others = others.map(|(outcome, count)| (Class::of_answer(outcome, None, None), count));
    let http = errors.http.iter().map(move |(status, count)| (of_answers(Some(*status), None), *count));
    let grpc = errors.grpc.iter().map(move |(status, count)| (of_answers(None, Some(*status)), *count));
    others.chain(http).chain(grpc)
}

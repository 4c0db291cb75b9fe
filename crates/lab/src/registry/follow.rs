//! Watches that never end.

use futures::stream::{self, BoxStream, StreamExt};

use super::{Registry, Resource, Selection, Watch, WatchEvent, WatchFrom};

/// An event, and the resource it is about.
pub(crate) type Observed = (Resource, WatchEvent);

/// Follows all objects of several resources forever, beginning with those that exist. If a watch falls behind the
/// history, it begins again with those that exist then.
pub(crate) fn follow(registry: &Registry, resources: &[Resource]) -> BoxStream<'static, Observed> {
    let feeds = resources.iter().map(|&resource| {
        let start = (registry.clone(), None::<Watch>);
        stream::unfold(start, move |(registry, mut watch)| async move {
            loop {
                let following = match watch.take() {
                    Some(watch) => Ok(watch),
                    None => registry.watch(resource, None, Selection::all(), WatchFrom::Existing),
                };
                if let Ok(mut following) = following
                    && let Ok(event) = following.next().await
                {
                    return Some(((resource, event), (registry, Some(following))));
                }
            }
        })
        .boxed()
    });
    stream::select_all(feeds).boxed()
}

//! The pages of a state of the store: which are used, and whether all that its commit wrote are there.

use crate::error::StoreError;
use crate::format::{LargeValue, Roots, Run};
use crate::page::Page;
use crate::pages::Pages;
use crate::space::Space;
use alloc::vec::Vec;
use glass_api::Block;

/// What a walk found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walk {
    /// A page that the newest commit wrote is not as it wrote it.
    pub torn: Option<u32>,
    /// Other damaged pages, and the first of them.
    pub damaged: Option<(usize, u32)>,
}

impl Walk {
    fn damage(&mut self, page: u32) {
        let (count, first) = self.damaged.unwrap_or((0, page));
        self.damaged = Some((count + 1, first));
    }
}

/// Marks all pages of `roots` in `space`. Reads those above the leaves, leaves that name values with pages of their own, and all
/// that the newest commit wrote; other leaves are checked when they are read. With `ends_torn` it ends at the first torn page.
/// Fails if the disk does.
pub async fn walk<B: Block>(
    pages: &Pages<B>,
    roots: &Roots,
    space: &mut Space,
    ends_torn: bool,
) -> Result<Walk, StoreError> {
    let mut walk = Walk::default();
    let trees = roots.trees.iter().filter(|tree| tree.root.page != 0);
    // Of each level at most the entries of one page. A root may have such values without an entry that announces them.
    let mut stack: Vec<_> = trees.map(|tree| (tree.root, tree.level, true)).collect();
    while let Some((pointer, level, is_large)) = stack.pop() {
        let is_new = pointer.sequence == roots.sequence as u32;
        if !space.mark(Run::one(pointer.page)) {
            walk.damage(pointer.page);
            continue;
        }
        if level == 0 && !is_large && !is_new {
            continue;
        }
        match pages.read(pointer, level).await {
            Ok(page) if level > 0 => {
                stack.extend((0..page.count()).map(|index| (page.child(index), level - 1, page.is_large(index))));
            }
            Ok(page) => {
                if !mark_values(&page, is_large, space) {
                    walk.damage(pointer.page);
                }
            }
            Err(StoreError::Damaged { page }) if is_new => {
                walk.torn = walk.torn.or(Some(page));
                if ends_torn {
                    return Ok(walk);
                }
                walk.damage(page);
            }
            Err(StoreError::Damaged { page }) => walk.damage(page),
            Err(error) => return Err(error),
        }
    }
    Ok(walk)
}

/// Marks the pages of a leaf's values; false if they are not sound.
fn mark_values(leaf: &Page, is_large: bool, space: &mut Space) -> bool {
    (0..leaf.count()).filter(|index| leaf.is_large(*index)).all(|index| {
        let value = LargeValue::decode(leaf.payload(index));
        is_large && value.is_some_and(|value| value.runs.into_iter().all(|run| space.mark(run)))
    })
}

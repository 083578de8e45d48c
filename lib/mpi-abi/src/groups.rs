//! Groups: sets of ranks in an order.

use crate::global::{core_of, find, objects, world};
use crate::handles::{COMM_SELF, GROUP_EMPTY, GROUP_NULL, Handle, Kind, PROC_NULL, UNDEFINED, handle_of};
use crate::memory::slice_of;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ffi::c_int;
use glass_lib_mpi::{Comparison, Error, Group};

/// The number of a comparison.
pub fn number_of(comparison: Comparison) -> c_int {
    match comparison {
        Comparison::Same => 201,
        Comparison::Congruent => 202,
        Comparison::Similar => 203,
        Comparison::Unequal => 204,
    }
}

/// The group of a handle.
pub fn group(handle: Handle) -> Result<Rc<Group>, Error> {
    if handle == GROUP_EMPTY {
        return Ok(Rc::new(Group::new(Vec::new())));
    }
    find(&mut objects().groups, Kind::Group, handle).map(|(_, group)| Rc::clone(group)).ok_or(Error::Group)
}

fn add(group: Rc<Group>) -> Handle {
    if group.size() == 0 { GROUP_EMPTY } else { handle_of(Kind::Group, objects().groups.insert(group)) }
}

fn add_members(members: Vec<u32>) -> Handle {
    add(Rc::new(Group::new(members)))
}

/// The ranks that a list of the program names, each once.
unsafe fn chosen(group: &Group, count: c_int, ranks: *const c_int) -> Result<Vec<usize>, Error> {
    let count = usize::try_from(count).map_err(|_| Error::Arg)?;
    distinct(group, unsafe { slice_of(ranks, count) }.iter().map(|rank| i64::from(*rank)))
}

fn distinct(group: &Group, ranks: impl Iterator<Item = i64>) -> Result<Vec<usize>, Error> {
    let mut found = Vec::new();
    for rank in ranks {
        let rank = usize::try_from(rank).ok().filter(|rank| *rank < group.size()).ok_or(Error::Rank)?;
        if found.contains(&rank) {
            return Err(Error::Rank);
        }
        found.push(rank);
    }
    Ok(found)
}

/// The ranks in ranges: first, last, stride.
unsafe fn ranges(group: &Group, count: c_int, ranges: *const [c_int; 3]) -> Result<Vec<usize>, Error> {
    let count = usize::try_from(count).map_err(|_| Error::Arg)?;
    let mut ranks = Vec::new();
    for [first, last, stride] in unsafe { slice_of(ranges, count) }.iter().map(|range| range.map(i64::from)) {
        if stride == 0 {
            return Err(Error::Arg);
        }
        let steps = ((last - first) / stride).min(group.size() as i64);
        ranks.extend((0..=steps).filter(|_| (last - first) * stride.signum() >= 0).map(|step| first + step * stride));
    }
    distinct(group, ranks.into_iter())
}

fn members_at(group: &Group, ranks: &[usize]) -> Vec<u32> {
    ranks.iter().map(|rank| group.members()[*rank]).collect()
}

fn members_without(group: &Group, ranks: &[usize]) -> Vec<u32> {
    (0..group.size()).filter(|rank| !ranks.contains(rank)).map(|rank| group.members()[rank]).collect()
}

fn is_in(group: &Group, member: u32) -> bool {
    group.rank_of(member as usize).is_some()
}

mpi! {
    fn MPI_Comm_group(comm: Handle, new: *mut Handle) on comm; {
        let core = core_of(comm)?;
        *new = add(Rc::clone(core.group()));
        Ok(())
    }

    fn MPI_Group_size(handle: Handle, size: *mut c_int) on COMM_SELF; {
        *size = group(handle)?.size() as c_int;
        Ok(())
    }

    fn MPI_Group_rank(handle: Handle, rank: *mut c_int) on COMM_SELF; {
        *rank = group(handle)?.rank_of(world()?.rank()).map_or(UNDEFINED, |rank| rank as c_int);
        Ok(())
    }

    fn MPI_Group_free(handle: *mut Handle) on COMM_SELF; {
        if *handle != GROUP_EMPTY {
            let (id, _) = find(&mut objects().groups, Kind::Group, *handle).ok_or(Error::Group)?;
            objects().groups.remove(id);
        }
        *handle = GROUP_NULL;
        Ok(())
    }

    fn MPI_Group_compare(first: Handle, second: Handle, result: *mut c_int) on COMM_SELF; {
        *result = number_of(group(first)?.compare(&*group(second)?));
        Ok(())
    }

    fn MPI_Group_translate_ranks(first: Handle, count: c_int, ranks: *const c_int, second: Handle, results: *mut c_int) on COMM_SELF; {
        let (first, second) = (group(first)?, group(second)?);
        let count = usize::try_from(count).map_err(|_| Error::Arg)?;
        for (index, rank) in slice_of(ranks, count).iter().enumerate() {
            *results.add(index) = match *rank {
                PROC_NULL => PROC_NULL,
                rank => {
                    let rank = usize::try_from(rank).map_err(|_| Error::Rank)?;
                    let member = first.member(rank).ok_or(Error::Rank)?;
                    second.rank_of(member).map_or(UNDEFINED, |rank| rank as c_int)
                }
            };
        }
        Ok(())
    }

    fn MPI_Group_union(first: Handle, second: Handle, new: *mut Handle) on COMM_SELF; {
        let (first, second) = (group(first)?, group(second)?);
        let others = second.members().iter().copied().filter(|member| !is_in(&first, *member));
        *new = add_members(first.members().iter().copied().chain(others).collect());
        Ok(())
    }

    fn MPI_Group_intersection(first: Handle, second: Handle, new: *mut Handle) on COMM_SELF; {
        let (first, second) = (group(first)?, group(second)?);
        *new = add_members(first.members().iter().copied().filter(|member| is_in(&second, *member)).collect());
        Ok(())
    }

    fn MPI_Group_difference(first: Handle, second: Handle, new: *mut Handle) on COMM_SELF; {
        let (first, second) = (group(first)?, group(second)?);
        *new = add_members(first.members().iter().copied().filter(|member| !is_in(&second, *member)).collect());
        Ok(())
    }

    fn MPI_Group_incl(handle: Handle, count: c_int, ranks: *const c_int, new: *mut Handle) on COMM_SELF; {
        let group = group(handle)?;
        *new = add_members(members_at(&group, &chosen(&group, count, ranks)?));
        Ok(())
    }

    fn MPI_Group_excl(handle: Handle, count: c_int, ranks: *const c_int, new: *mut Handle) on COMM_SELF; {
        let group = group(handle)?;
        *new = add_members(members_without(&group, &chosen(&group, count, ranks)?));
        Ok(())
    }

    fn MPI_Group_range_incl(handle: Handle, count: c_int, list: *const [c_int; 3], new: *mut Handle) on COMM_SELF; {
        let group = group(handle)?;
        *new = add_members(members_at(&group, &ranges(&group, count, list)?));
        Ok(())
    }

    fn MPI_Group_range_excl(handle: Handle, count: c_int, list: *const [c_int; 3], new: *mut Handle) on COMM_SELF; {
        let group = group(handle)?;
        *new = add_members(members_without(&group, &ranges(&group, count, list)?));
        Ok(())
    }
}

//! Datatypes: the predefined ones by the standard's numbers, and those that programs make of them.

use crate::attributes;
use crate::global::{datatype, find, objects};
use crate::handles::{COMM_SELF, Count, DATATYPE_NULL, Handle, Kind, TYPE_FIRST, TYPES, handle_of};
use crate::memory::{put_text, slice_of, text_of};
use crate::objects::{Recipe, Type};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{c_char, c_int, c_void};
use glass_lib_mpi::{Base, Basic, Buffer, Datatype, Error, Part, Value};

const OBJECT_NAME_BYTES: usize = 128;
/// How a type was made, in the numbers of the standard.
const NAMED: c_int = 101;
const DUP: c_int = 102;
const CONTIGUOUS: c_int = 103;
const VECTOR: c_int = 104;
const HVECTOR: c_int = 105;
const INDEXED: c_int = 106;
const HINDEXED: c_int = 107;
const INDEXED_BLOCK: c_int = 108;
const HINDEXED_BLOCK: c_int = 109;
const STRUCT: c_int = 110;
const SUBARRAY: c_int = 111;
const RESIZED: c_int = 116;
const ORDER_C: c_int = 12;
const ORDER_FORTRAN: c_int = 15;

/// Number, content and name of each predefined type that this library has.
const PREDEFINED: [(Handle, Basic, &str); 70] = [
    (0x201, Basic::Int(8), "MPI_AINT"),
    (0x202, Basic::Int(8), "MPI_COUNT"),
    (0x203, Basic::Int(8), "MPI_OFFSET"),
    (0x207, Basic::Byte, "MPI_PACKED"),
    (0x208, Basic::Int(2), "MPI_SHORT"),
    (0x209, Basic::Int(4), "MPI_INT"),
    (0x20a, Basic::Int(8), "MPI_LONG"),
    (0x20b, Basic::Int(8), "MPI_LONG_LONG"),
    (0x20c, Basic::Unsigned(2), "MPI_UNSIGNED_SHORT"),
    (0x20d, Basic::Unsigned(4), "MPI_UNSIGNED"),
    (0x20e, Basic::Unsigned(8), "MPI_UNSIGNED_LONG"),
    (0x20f, Basic::Unsigned(8), "MPI_UNSIGNED_LONG_LONG"),
    (0x210, Basic::Float(4), "MPI_FLOAT"),
    (0x212, Basic::Complex(8), "MPI_C_FLOAT_COMPLEX"),
    (0x213, Basic::Complex(8), "MPI_CXX_FLOAT_COMPLEX"),
    (0x214, Basic::Float(8), "MPI_DOUBLE"),
    (0x216, Basic::Complex(16), "MPI_C_DOUBLE_COMPLEX"),
    (0x217, Basic::Complex(16), "MPI_CXX_DOUBLE_COMPLEX"),
    (0x218, Basic::Logical(4), "MPI_LOGICAL"),
    (0x219, Basic::Int(4), "MPI_INTEGER"),
    (0x21a, Basic::Float(4), "MPI_REAL"),
    (0x21b, Basic::Complex(8), "MPI_COMPLEX"),
    (0x21c, Basic::Float(8), "MPI_DOUBLE_PRECISION"),
    (0x21d, Basic::Complex(16), "MPI_DOUBLE_COMPLEX"),
    (0x21e, Basic::Character(1), "MPI_CHARACTER"),
    (0x220, Basic::Float(16), "MPI_LONG_DOUBLE"),
    (0x224, Basic::Complex(32), "MPI_C_LONG_DOUBLE_COMPLEX"),
    (0x225, Basic::Complex(32), "MPI_CXX_LONG_DOUBLE_COMPLEX"),
    (0x228, Basic::Pair(Value::F32), "MPI_FLOAT_INT"),
    (0x229, Basic::Pair(Value::F64), "MPI_DOUBLE_INT"),
    (0x22a, Basic::Pair(Value::I64), "MPI_LONG_INT"),
    (0x22b, Basic::Pair(Value::I32), "MPI_2INT"),
    (0x22c, Basic::Pair(Value::I16), "MPI_SHORT_INT"),
    (0x22d, Basic::Pair(Value::F80), "MPI_LONG_DOUBLE_INT"),
    (0x232, Basic::Pair(Value::I32), "MPI_2INTEGER"),
    (0x238, Basic::Logical(1), "MPI_C_BOOL"),
    (0x239, Basic::Logical(1), "MPI_CXX_BOOL"),
    (0x23c, Basic::Character(4), "MPI_WCHAR"),
    (0x240, Basic::Int(1), "MPI_INT8_T"),
    (0x241, Basic::Unsigned(1), "MPI_UINT8_T"),
    (0x243, Basic::Character(1), "MPI_CHAR"),
    (0x244, Basic::Int(1), "MPI_SIGNED_CHAR"),
    (0x245, Basic::Unsigned(1), "MPI_UNSIGNED_CHAR"),
    (0x247, Basic::Byte, "MPI_BYTE"),
    (0x248, Basic::Int(2), "MPI_INT16_T"),
    (0x249, Basic::Unsigned(2), "MPI_UINT16_T"),
    (0x250, Basic::Int(4), "MPI_INT32_T"),
    (0x251, Basic::Unsigned(4), "MPI_UINT32_T"),
    (0x258, Basic::Int(8), "MPI_INT64_T"),
    (0x259, Basic::Unsigned(8), "MPI_UINT64_T"),
    (0x2c0, Basic::Logical(1), "MPI_LOGICAL1"),
    (0x2c1, Basic::Int(1), "MPI_INTEGER1"),
    (0x2c8, Basic::Logical(2), "MPI_LOGICAL2"),
    (0x2c9, Basic::Int(2), "MPI_INTEGER2"),
    (0x2ca, Basic::Character(2), "MPI_REAL2"),
    (0x2d0, Basic::Logical(4), "MPI_LOGICAL4"),
    (0x2d1, Basic::Int(4), "MPI_INTEGER4"),
    (0x2d2, Basic::Float(4), "MPI_REAL4"),
    (0x2d3, Basic::Character(4), "MPI_COMPLEX4"),
    (0x2d8, Basic::Logical(8), "MPI_LOGICAL8"),
    (0x2d9, Basic::Int(8), "MPI_INTEGER8"),
    (0x2da, Basic::Float(8), "MPI_REAL8"),
    (0x2db, Basic::Complex(8), "MPI_COMPLEX8"),
    (0x2e0, Basic::Logical(16), "MPI_LOGICAL16"),
    (0x2e1, Basic::Int(16), "MPI_INTEGER16"),
    (0x2e2, Basic::Float(16), "MPI_REAL16"),
    (0x2e3, Basic::Complex(16), "MPI_COMPLEX16"),
    (0x2eb, Basic::Complex(32), "MPI_COMPLEX32"),
    // Pairs of Fortran: two equal numbers, whose order MINLOC and MAXLOC would compare.
    (0x230, Basic::Complex(8), "MPI_2REAL"),
    (0x231, Basic::Complex(16), "MPI_2DOUBLE_PRECISION"),
];

/// Makes the predefined types.
pub fn define() {
    let predefined = &mut objects().predefined;
    predefined.resize(TYPES, None);
    for (number, basic, name) in PREDEFINED {
        let recipe = Rc::new(Recipe { combiner: NAMED, ..Recipe::default() });
        let core = Rc::new(Datatype::of(basic));
        let (name, attributes) = (name.as_bytes().to_vec(), Vec::new());
        predefined[number - TYPE_FIRST] = Some(Type { core, recipe, name, attributes, number: Some(number) });
    }
}

/// A buffer of the program.
#[inline]
pub unsafe fn buffer<C: Count>(start: *const c_void, count: C, handle: Handle) -> Result<Buffer, Error> {
    let core = &datatype(handle)?.core;
    let count = count.size()?;
    if start.is_null() && count > 0 && core.true_extent() > 0 && handle < TYPE_FIRST + TYPES {
        return Err(Error::Buffer);
    }
    // SAFETY: the program's promise, as the standard has it.
    Ok(Buffer { base: unsafe { Base::new(start.cast_mut().cast()) }, count, datatype: Rc::clone(core) })
}

/// The handle of a type: its number, or a new one.
pub fn handle_for(found: &Type) -> Handle {
    found.number.unwrap_or_else(|| handle_of(Kind::Datatype, objects().types.insert(found.clone())))
}

/// A handle by which a function of the program sees a type during one call.
pub fn mapped(core: &Rc<Datatype>) -> (Handle, Option<glass_lib_mpi::Id>) {
    let known = objects().predefined.iter().flatten().find(|found| Rc::ptr_eq(&found.core, core));
    if let Some(number) = known.and_then(|found| found.number) {
        return (number, None);
    }
    let recipe = Rc::new(Recipe { combiner: NAMED, ..Recipe::default() });
    let made = Type { core: Rc::clone(core), recipe, name: Vec::new(), attributes: Vec::new(), number: None };
    let id = objects().types.insert(made);
    (handle_of(Kind::Datatype, id), Some(id))
}

/// Keeps a new type.
fn add(core: Datatype, recipe: Recipe) -> Handle {
    let made =
        Type { core: Rc::new(core), recipe: Rc::new(recipe), name: Vec::new(), attributes: Vec::new(), number: None };
    handle_of(Kind::Datatype, objects().types.insert(made))
}

fn is_large<C: Count>() -> bool {
    size_of::<C>() == 8
}

fn part(child: &Type, displacement: i64, count: i64) -> Result<Part, Error> {
    let count = usize::try_from(count).map_err(|_| Error::Arg)?;
    Ok(Part { displacement: displacement as isize, count, datatype: Rc::clone(&child.core) })
}

unsafe fn numbers<C: Count>(start: *const C, count: usize) -> Vec<i64> {
    unsafe { slice_of(start, count) }.iter().map(|number| number.wide()).collect()
}

/// Blocks of one type: `lengths` elements each, `displacements` in bytes.
fn blocks(child: &Type, lengths: &[i64], displacements: impl Iterator<Item = i64>) -> Result<Datatype, Error> {
    let parts: Result<Vec<Part>, Error> =
        lengths.iter().zip(displacements).map(|(length, displacement)| part(child, displacement, *length)).collect();
    Datatype::of_parts(&parts?, false)
}

fn vector(child: &Type, count: i64, length: i64, stride_bytes: i64) -> Result<Datatype, Error> {
    let count = usize::try_from(count).map_err(|_| Error::Count)?;
    if length < 0 {
        return Err(Error::Arg);
    }
    let block = Datatype::of_parts(&[part(child, 0, length)?], false)?;
    if stride_bytes == block.extent() as i64 {
        return Datatype::of_parts(&[part(child, 0, length * count as i64)?], false);
    }
    blocks(child, &vec![length; count], (0..count as i64).map(|index| index * stride_bytes))
}

fn subarray(child: &Type, sizes: &[i64], parts: &[i64], starts: &[i64], order: c_int) -> Result<Datatype, Error> {
    let is_valid = |((size, part), start): ((&i64, &i64), &i64)| *part > 0 && *start >= 0 && *start + *part <= *size;
    if sizes.is_empty() || !sizes.iter().zip(parts).zip(starts).all(is_valid) {
        return Err(Error::Arg);
    }
    let mut dimensions: Vec<usize> = (0..sizes.len()).collect();
    match order {
        // The last dimension is the innermost.
        ORDER_C => dimensions.reverse(),
        ORDER_FORTRAN => {}
        _ => return Err(Error::Arg),
    }
    let extent = child.core.extent() as i64;
    let (mut made, mut stride, mut offset) = ((*child.core).clone(), extent, 0);
    for dimension in dimensions {
        let datatype = Rc::new(made);
        let rows = (0..parts[dimension]).map(|row| Part {
            displacement: (row * stride) as isize,
            count: 1,
            datatype: Rc::clone(&datatype),
        });
        made = Datatype::of_parts(&rows.collect::<Vec<_>>(), false)?;
        offset += starts[dimension] * stride;
        stride *= sizes[dimension];
    }
    let moved = Part { displacement: offset as isize, count: 1, datatype: Rc::new(made) };
    Ok(Datatype::of_parts(&[moved], false)?.resized(0, stride as isize))
}

fn recipe<C: Count>(combiner: c_int, integers: Vec<i64>, addresses: Vec<i64>, types: Vec<Type>) -> Recipe {
    Recipe { combiner, integers, addresses, types, is_large: is_large::<C>() }
}

fn free(handle: &mut Handle) -> Result<(), Error> {
    let (id, found) = find(&mut objects().types, Kind::Datatype, *handle).ok_or(Error::Type)?;
    let values = core::mem::take(&mut found.attributes);
    attributes::delete_values(*handle, values)?;
    objects().types.remove(id);
    *handle = DATATYPE_NULL;
    Ok(())
}

mpi_pair! {
    fn MPI_Type_contiguous MPI_Type_contiguous_c [C] (count: C, old: Handle, new: *mut Handle) on COMM_SELF; {
        let child = datatype(old)?.clone();
        count.size()?;
        let core = Datatype::of_parts(&[part(&child, 0, count.wide())?], false)?;
        *new = add(core, recipe::<C>(CONTIGUOUS, vec![count.wide()], vec![], vec![child]));
        Ok(())
    }

    fn MPI_Type_vector MPI_Type_vector_c [C] (count: C, length: C, stride: C, old: Handle, new: *mut Handle) on COMM_SELF; {
        let child = datatype(old)?.clone();
        let core = vector(&child, count.wide(), length.wide(), stride.wide() * child.core.extent() as i64)?;
        let integers = vec![count.wide(), length.wide(), stride.wide()];
        *new = add(core, recipe::<C>(VECTOR, integers, vec![], vec![child]));
        Ok(())
    }

    fn MPI_Type_create_hvector MPI_Type_create_hvector_c [C] (count: C, length: C, stride: i64, old: Handle, new: *mut Handle) on COMM_SELF; {
        let child = datatype(old)?.clone();
        let core = vector(&child, count.wide(), length.wide(), stride)?;
        *new = add(core, recipe::<C>(HVECTOR, vec![count.wide(), length.wide()], vec![stride], vec![child]));
        Ok(())
    }

    fn MPI_Type_indexed MPI_Type_indexed_c [C] (count: C, lengths: *const C, places: *const C, old: Handle, new: *mut Handle) on COMM_SELF; {
        let (child, count) = (datatype(old)?.clone(), count.size()?);
        let (lengths, places) = (numbers(lengths, count), numbers(places, count));
        let extent = child.core.extent() as i64;
        let core = blocks(&child, &lengths, places.iter().map(|place| place * extent))?;
        let integers = [vec![count as i64], lengths, places].concat();
        *new = add(core, recipe::<C>(INDEXED, integers, vec![], vec![child]));
        Ok(())
    }

    fn MPI_Type_create_hindexed MPI_Type_create_hindexed_c [C] (count: C, lengths: *const C, places: *const i64, old: Handle, new: *mut Handle) on COMM_SELF; {
        let (child, count) = (datatype(old)?.clone(), count.size()?);
        let (lengths, places) = (numbers(lengths, count), numbers(places, count));
        let core = blocks(&child, &lengths, places.iter().copied())?;
        *new = add(core, recipe::<C>(HINDEXED, [vec![count as i64], lengths].concat(), places, vec![child]));
        Ok(())
    }

    fn MPI_Type_create_indexed_block MPI_Type_create_indexed_block_c [C] (count: C, length: C, places: *const C, old: Handle, new: *mut Handle) on COMM_SELF; {
        let (child, count) = (datatype(old)?.clone(), count.size()?);
        let places = numbers(places, count);
        let extent = child.core.extent() as i64;
        let core = blocks(&child, &vec![length.wide(); count], places.iter().map(|place| place * extent))?;
        let integers = [vec![count as i64, length.wide()], places].concat();
        *new = add(core, recipe::<C>(INDEXED_BLOCK, integers, vec![], vec![child]));
        Ok(())
    }

    fn MPI_Type_create_hindexed_block MPI_Type_create_hindexed_block_c [C] (count: C, length: C, places: *const i64, old: Handle, new: *mut Handle) on COMM_SELF; {
        let (child, count) = (datatype(old)?.clone(), count.size()?);
        let places = numbers(places, count);
        let core = blocks(&child, &vec![length.wide(); count], places.iter().copied())?;
        *new = add(core, recipe::<C>(HINDEXED_BLOCK, vec![count as i64, length.wide()], places, vec![child]));
        Ok(())
    }

    fn MPI_Type_create_struct MPI_Type_create_struct_c [C] (count: C, lengths: *const C, places: *const i64, types: *const Handle, new: *mut Handle) on COMM_SELF; {
        let count = count.size()?;
        let (lengths, places) = (numbers(lengths, count), numbers(places, count));
        let children: Result<Vec<Type>, Error> = slice_of(types, count).iter().map(|child| datatype(*child).cloned()).collect();
        let children = children?;
        let parts: Result<Vec<Part>, Error> =
            children.iter().zip(&lengths).zip(&places).map(|((child, length), place)| part(child, *place, *length)).collect();
        let core = Datatype::of_parts(&parts?, true)?;
        *new = add(core, recipe::<C>(STRUCT, [vec![count as i64], lengths].concat(), places, children));
        Ok(())
    }

    fn MPI_Type_create_subarray MPI_Type_create_subarray_c [C] (count: c_int, sizes: *const C, parts: *const C, starts: *const C, order: c_int, old: Handle, new: *mut Handle) on COMM_SELF; {
        let (child, count) = (datatype(old)?.clone(), count.size()?);
        let (sizes, parts, starts) = (numbers(sizes, count), numbers(parts, count), numbers(starts, count));
        let core = subarray(&child, &sizes, &parts, &starts, order)?;
        let integers = [vec![count as i64], sizes, parts, starts, vec![order.into()]].concat();
        *new = add(core, recipe::<C>(SUBARRAY, integers, vec![], vec![child]));
        Ok(())
    }

    fn MPI_Type_create_resized MPI_Type_create_resized_c [C] (old: Handle, lower: i64, extent: i64, new: *mut Handle) on COMM_SELF; {
        let child = datatype(old)?.clone();
        let core = child.core.resized(lower as isize, extent as isize);
        *new = add(core, recipe::<C>(RESIZED, vec![], vec![lower, extent], vec![child]));
        Ok(())
    }

    fn MPI_Type_size MPI_Type_size_c [C] (handle: Handle, size: *mut C) on COMM_SELF; {
        *size = C::of(datatype(handle)?.core.size() as i64);
        Ok(())
    }

    fn MPI_Type_get_extent MPI_Type_get_extent_c [C] (handle: Handle, lower: *mut i64, extent: *mut i64) on COMM_SELF; {
        let core = &datatype(handle)?.core;
        (*lower, *extent) = (core.lower() as i64, core.extent() as i64);
        Ok(())
    }

    fn MPI_Type_get_true_extent MPI_Type_get_true_extent_c [C] (handle: Handle, lower: *mut i64, extent: *mut i64) on COMM_SELF; {
        let core = &datatype(handle)?.core;
        (*lower, *extent) = (core.true_lower() as i64, core.true_extent() as i64);
        Ok(())
    }

    fn MPI_Pack_size MPI_Pack_size_c [C] (count: C, handle: Handle, comm: Handle, size: *mut C) on comm; {
        crate::global::comm(comm)?;
        *size = C::of((count.size()? * datatype(handle)?.core.size()) as i64);
        Ok(())
    }

    fn MPI_Pack MPI_Pack_c [C] (from: *const c_void, count: C, handle: Handle, to: *mut u8, capacity: C, position: *mut C, comm: Handle) on comm; {
        crate::global::comm(comm)?;
        let from = buffer(from, count, handle)?;
        let (start, capacity) = ((*position).size()?, capacity.size()?);
        if from.bytes() > capacity.saturating_sub(start) {
            return Err(Error::Truncate);
        }
        let mut packed = Vec::with_capacity(from.bytes());
        from.datatype.pack(from.base, from.count, &mut packed);
        core::ptr::copy(packed.as_ptr(), to.add(start), packed.len());
        *position = C::of((start + packed.len()) as i64);
        Ok(())
    }

    fn MPI_Unpack MPI_Unpack_c [C] (from: *const u8, capacity: C, position: *mut C, to: *mut c_void, count: C, handle: Handle, comm: Handle) on comm; {
        crate::global::comm(comm)?;
        let to = buffer(to, count, handle)?;
        let (start, capacity) = ((*position).size()?, capacity.size()?);
        if to.bytes() > capacity.saturating_sub(start) {
            return Err(Error::Truncate);
        }
        let packed = slice_of(from.add(start), to.bytes());
        to.datatype.unpack(packed, to.base, to.count);
        *position = C::of((start + packed.len()) as i64);
        Ok(())
    }
}

/// The only representation that the standard names: as in memory, but each number with its highest byte first.
unsafe fn check_external(kind: *const c_char) -> Result<(), Error> {
    if unsafe { text_of(kind) } == b"external32" { Ok(()) } else { Err(Error::Arg) }
}

mpi_pair! {
    fn MPI_Pack_external_size MPI_Pack_external_size_c [C] (kind: *const c_char, count: C, handle: Handle, size: *mut i64) on COMM_SELF; {
        check_external(kind)?;
        *size = (count.size()? * datatype(handle)?.core.size()) as i64;
        Ok(())
    }

    fn MPI_Pack_external MPI_Pack_external_c [C] (kind: *const c_char, from: *const c_void, count: C, handle: Handle, to: *mut u8, capacity: i64, position: *mut i64) on COMM_SELF; {
        check_external(kind)?;
        let from = buffer(from, count, handle)?;
        let (start, capacity) = ((*position).size()?, capacity.size()?);
        if from.bytes() > capacity.saturating_sub(start) {
            return Err(Error::Truncate);
        }
        let mut packed = Vec::with_capacity(from.bytes());
        from.datatype.pack(from.base, from.count, &mut packed);
        from.datatype.reverse_numbers(&mut packed);
        core::ptr::copy(packed.as_ptr(), to.add(start), packed.len());
        *position = (start + packed.len()) as i64;
        Ok(())
    }

    fn MPI_Unpack_external MPI_Unpack_external_c [C] (kind: *const c_char, from: *const u8, capacity: i64, position: *mut i64, to: *mut c_void, count: C, handle: Handle) on COMM_SELF; {
        check_external(kind)?;
        let to = buffer(to, count, handle)?;
        let (start, capacity) = ((*position).size()?, capacity.size()?);
        if to.bytes() > capacity.saturating_sub(start) {
            return Err(Error::Truncate);
        }
        let mut packed = slice_of(from.add(start), to.bytes()).to_vec();
        to.datatype.reverse_numbers(&mut packed);
        to.datatype.unpack(&packed, to.base, to.count);
        *position = (start + packed.len()) as i64;
        Ok(())
    }
}

mpi! {
    fn MPI_Type_commit(handle: *mut Handle) on COMM_SELF; { datatype(*handle).map(drop) }

    fn MPI_Type_free(handle: *mut Handle) on COMM_SELF; { free(&mut *handle) }

    fn MPI_Type_dup(old: Handle, new: *mut Handle) on COMM_SELF; {
        let child = datatype(old)?.clone();
        let copies = attributes::copied(old, &child.attributes)?;
        let core = (*child.core).clone();
        let handle = add(core, Recipe { combiner: DUP, types: vec![child], ..Recipe::default() });
        *crate::global::attributes(handle)? = copies;
        *new = handle;
        Ok(())
    }

    fn MPI_Type_size_x(handle: Handle, size: *mut i64) on COMM_SELF; {
        *size = datatype(handle)?.core.size() as i64;
        Ok(())
    }

    fn MPI_Type_get_extent_x(handle: Handle, lower: *mut i64, extent: *mut i64) on COMM_SELF; {
        let core = &datatype(handle)?.core;
        (*lower, *extent) = (core.lower() as i64, core.extent() as i64);
        Ok(())
    }

    fn MPI_Type_get_true_extent_x(handle: Handle, lower: *mut i64, extent: *mut i64) on COMM_SELF; {
        let core = &datatype(handle)?.core;
        (*lower, *extent) = (core.true_lower() as i64, core.true_extent() as i64);
        Ok(())
    }

    fn MPI_Type_set_name(handle: Handle, name: *const c_char) on COMM_SELF; {
        let mut name = text_of(name);
        name.truncate(OBJECT_NAME_BYTES - 1);
        datatype(handle)?.name = name;
        Ok(())
    }

    fn MPI_Type_get_name(handle: Handle, name: *mut c_char, length: *mut c_int) on COMM_SELF; {
        if handle == DATATYPE_NULL {
            put_text(b"MPI_DATATYPE_NULL", name, length, OBJECT_NAME_BYTES);
            return Ok(());
        }
        put_text(&datatype(handle)?.name, name, length, OBJECT_NAME_BYTES);
        Ok(())
    }

    fn MPI_Type_get_envelope(handle: Handle, integers: *mut c_int, addresses: *mut c_int, types: *mut c_int, combiner: *mut c_int) on COMM_SELF; {
        let recipe = Rc::clone(&datatype(handle)?.recipe);
        *integers = recipe.integers.len() as c_int;
        *addresses = recipe.addresses.len() as c_int;
        *types = recipe.types.len() as c_int;
        *combiner = recipe.combiner;
        Ok(())
    }

    fn MPI_Type_get_envelope_c(handle: Handle, integers: *mut i64, addresses: *mut i64, counts: *mut i64, types: *mut i64, combiner: *mut c_int) on COMM_SELF; {
        let recipe = Rc::clone(&datatype(handle)?.recipe);
        let (numbers, places) = (recipe.integers.len() as i64, recipe.addresses.len() as i64);
        // A type of the variant for large counts has all its numbers as counts.
        (*integers, *addresses, *counts) = if recipe.is_large { split(&recipe) } else { (numbers, places, 0) };
        *types = recipe.types.len() as i64;
        *combiner = recipe.combiner;
        Ok(())
    }

    fn MPI_Type_get_contents(handle: Handle, integers_max: c_int, addresses_max: c_int, types_max: c_int,
        integers: *mut c_int, addresses: *mut i64, types: *mut Handle) on COMM_SELF; {
        let recipe = contents(handle)?;
        let capacities = [(integers_max, recipe.integers.len()), (addresses_max, recipe.addresses.len()), (types_max, recipe.types.len())];
        if capacities.iter().any(|(capacity, needed)| (*capacity as usize) < *needed) {
            return Err(Error::Arg);
        }
        recipe.integers.iter().enumerate().for_each(|(index, number)| *integers.add(index) = *number as c_int);
        recipe.addresses.iter().enumerate().for_each(|(index, number)| *addresses.add(index) = *number);
        recipe.types.iter().enumerate().for_each(|(index, child)| *types.add(index) = handle_for(child));
        Ok(())
    }

    fn MPI_Type_get_contents_c(handle: Handle, _integers_max: i64, _addresses_max: i64, _counts_max: i64, _types_max: i64,
        integers: *mut c_int, addresses: *mut i64, counts: *mut i64, types: *mut Handle) on COMM_SELF; {
        let recipe = contents(handle)?;
        let (plain, _, _) = if recipe.is_large { split(&recipe) } else { (recipe.integers.len() as i64, 0, 0) };
        let is_order_last = recipe.is_large && recipe.combiner == SUBARRAY;
        let mut index = 0;
        let mut large = 0;
        for (place, number) in recipe.integers.iter().enumerate() {
            let is_plain = !recipe.is_large || is_order_last && (place == 0 || place + 1 == recipe.integers.len());
            if is_plain && index < plain {
                *integers.add(index as usize) = *number as c_int;
                index += 1;
            } else {
                *counts.add(large) = *number;
                large += 1;
            }
        }
        for (place, number) in recipe.addresses.iter().enumerate() {
            match recipe.is_large {
                true => *counts.add(large + place) = *number,
                false => *addresses.add(place) = *number,
            }
        }
        recipe.types.iter().enumerate().for_each(|(index, child)| *types.add(index) = handle_for(child));
        Ok(())
    }

    fn MPI_Type_match_size(class: c_int, size: c_int, found: *mut Handle) on COMM_SELF; {
        *found = match (class, size) {
            (191, 1) => 0x2c0, (191, 2) => 0x2c8, (191, 4) => 0x2d0, (191, 8) => 0x2d8, (191, 16) => 0x2e0,
            (192, 1) => 0x2c1, (192, 2) => 0x2c9, (192, 4) => 0x2d1, (192, 8) => 0x2d9, (192, 16) => 0x2e1,
            (193, 2) => 0x2ca, (193, 4) => 0x2d2, (193, 8) => 0x2da, (193, 16) => 0x2e2,
            (194, 4) => 0x2d3, (194, 8) => 0x2db, (194, 16) => 0x2e3, (194, 32) => 0x2eb,
            _ => return Err(Error::Arg),
        };
        Ok(())
    }
}

/// How many plain integers, addresses and counts `MPI_Type_get_contents_c` returns of a type with large counts.
fn split(recipe: &Recipe) -> (i64, i64, i64) {
    let plain = if recipe.combiner == SUBARRAY { 2 } else { 0 };
    (plain, 0, (recipe.integers.len() + recipe.addresses.len()) as i64 - plain)
}

fn contents(handle: Handle) -> Result<Rc<Recipe>, Error> {
    let recipe = Rc::clone(&datatype(handle)?.recipe);
    if recipe.combiner == NAMED { Err(Error::Type) } else { Ok(recipe) }
}

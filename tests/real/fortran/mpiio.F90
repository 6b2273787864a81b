! MPI-IO by Fortran's three bindings: mpif.h, the module mpi (-DMODULE) and mpi_f08 (-DF08), which reach MPI by other functions than C
! does. Each process writes every n-th number by collective calls, and reads those of the next process: with views of small
! pieces and of large ones, with hints, in atomic mode. Arguments: the file; the value of
! ROMIO's hint for data sieving of reads with large pieces, or "untold", where MPI does not tell it.
#ifdef F08
#define HANDLE(kind) type(kind)
#define STATUS type(MPI_Status) :: status
#else
#define HANDLE(kind) integer
#define STATUS integer :: status(MPI_STATUS_SIZE)
#endif
program mpiio
#if defined(F08)
  use mpi_f08
#elif defined(MODULE)
  use mpi
#endif
  implicit none
#if !defined(F08) && !defined(MODULE)
  include 'mpif.h'
#endif
  integer, parameter :: numbers = 60000
  HANDLE(MPI_File) :: file
  HANDLE(MPI_Info) :: info
  integer :: rank, size, code, wrong = 0
  character(len=1024) :: path, large
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, size, code)
  call get_command_argument(1, path)
  call get_command_argument(2, large)
  call MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, code)
  call note(code == MPI_SUCCESS, 'open')
  call write_and_read(1, 1, 'automatic')
  call write_and_read(2, 600, large)
  call MPI_File_set_atomicity(file, .true., code)
  call note(code == MPI_SUCCESS, 'atomic mode')
  call write_and_read(3, 600, 'automatic')
  call MPI_File_set_atomicity(file, .false., code)
  call write_and_read(4, 600, large)
  call MPI_Info_create(info, code)
  call MPI_Info_set(info, 'romio_cb_write', 'enable', code)
  call MPI_File_set_info(file, info, code)
  call note(code == MPI_SUCCESS, 'hints')
  call MPI_Info_free(info, code)
  call write_and_read(5, 1, 'automatic')
  call MPI_File_close(file, code)
  call note(code == MPI_SUCCESS, 'close')
  call MPI_Allreduce(MPI_IN_PLACE, wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
  if (rank == 0) print '(i0,a)', wrong, ' wrong'
  call MPI_Finalize(code)
contains

  subroutine note(is_right, what)
    logical, intent(in) :: is_right
    character(len=*), intent(in) :: what
    if (is_right) return
    wrong = wrong + 1
    print '(3a,i0)', 'FAIL ', what, ' of process ', rank
  end subroutine note

  subroutine set_view(owner, piece, sieving)
    integer, intent(in) :: owner, piece
    character(len=*), intent(in) :: sieving
    HANDLE(MPI_Datatype) :: view
    HANDLE(MPI_Info) :: found
    integer(kind=MPI_OFFSET_KIND) :: displacement
    character(len=63) :: value
    logical :: is_set
    call MPI_Type_vector(numbers / piece, piece, piece * size, MPI_DOUBLE_PRECISION, view, code)
    call MPI_Type_commit(view, code)
    displacement = 8 * piece * owner
    call MPI_File_set_view(file, displacement, MPI_DOUBLE_PRECISION, view, 'native', MPI_INFO_NULL, code)
    call note(code == MPI_SUCCESS, 'view')
    call MPI_Type_free(view, code)
    if (large == 'untold') return
    call MPI_File_get_info(file, found, code)
    call MPI_Info_get(found, 'romio_ds_read', 63, value, is_set, code)
    call note(is_set .and. value == sieving, 'data sieving '//trim(value))
    call MPI_Info_free(found, code)
  end subroutine set_view

  subroutine write_and_read(round, piece, sieving)
    integer, intent(in) :: round, piece
    character(len=*), intent(in) :: sieving
    real(8), allocatable :: values(:)
    integer :: i, next
    integer(kind=MPI_OFFSET_KIND) :: start
    STATUS
    allocate (values(numbers))
    next = mod(rank + 1, size)
    start = numbers / 2
    values = [(round * 1000000d0 + rank * 100000d0 + i, i=1, numbers)]
    call set_view(rank, piece, sieving)
    call MPI_File_write_all(file, values, numbers / 2, MPI_DOUBLE_PRECISION, status, code)
    call note(code == MPI_SUCCESS, 'write_all')
    call MPI_File_write_at_all(file, start, values(numbers / 2 + 1), numbers / 2, MPI_DOUBLE_PRECISION, status, code)
    call note(code == MPI_SUCCESS, 'write_at_all')
    call MPI_File_sync(file, code)
    call MPI_Barrier(MPI_COMM_WORLD, code)
    call MPI_File_sync(file, code)
    call set_view(next, piece, sieving)
    values = 0
    call MPI_File_read_all(file, values, numbers / 2, MPI_DOUBLE_PRECISION, status, code)
    call MPI_File_read_at_all(file, start, values(numbers / 2 + 1), numbers / 2, MPI_DOUBLE_PRECISION, status, code)
    call note(all(values == [(round * 1000000d0 + next * 100000d0 + i, i=1, numbers)]), 'read')
    call MPI_Barrier(MPI_COMM_WORLD, code)
  end subroutine write_and_read
end program mpiio

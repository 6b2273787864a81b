! Writes of PnetCDF from Fortran: they are in the log until the file is closed, and a get gives them before.
!
!   mpiexec -n N pnetcdf_log FILE
program pnetcdf_log
  use mpi
  use pnetcdf
  implicit none
  integer :: code, rank, processes, file, dims(2), variable
  integer(kind=MPI_OFFSET_KIND) :: start(2), counts(2), length
  real(8) :: written(100), read(100)
  character(len=1024) :: path

  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, processes, code)
  call get_command_argument(1, path)
  call must(nf90mpi_create(MPI_COMM_WORLD, trim(path), ior(NF90_CLOBBER, NF90_64BIT_DATA), MPI_INFO_NULL, file))
  length = 100_MPI_OFFSET_KIND * processes
  call must(nf90mpi_def_dim(file, "x", length, dims(1)))
  call must(nf90mpi_def_dim(file, "time", int(NF90_UNLIMITED, MPI_OFFSET_KIND), dims(2)))
  call must(nf90mpi_def_var(file, "v", NF90_DOUBLE, dims, variable))
  call must(nf90mpi_enddef(file))
  written = rank + 0.5d0
  start = (/ 100_MPI_OFFSET_KIND * rank + 1, 3_MPI_OFFSET_KIND /)
  counts = (/ 100_MPI_OFFSET_KIND, 1_MPI_OFFSET_KIND /)
  call must(nf90mpi_put_var_all(file, variable, written, start, counts))
  call must(nf90mpi_get_var_all(file, variable, read, start, counts))
  if (any(read /= written)) call MPI_Abort(MPI_COMM_WORLD, 1, code)
  if (rank == 0) call execute_command_line("ls -a ${WEIR_AT:-/none}/.pnetcdf 2>/dev/null")
  call must(nf90mpi_close(file))
  call MPI_Finalize(code)

contains

  subroutine must(result)
    integer, intent(in) :: result
    if (result /= NF90_NOERR) then
      print *, trim(nf90mpi_strerror(result))
      call MPI_Abort(MPI_COMM_WORLD, 1, code)
    end if
  end subroutine
end program
